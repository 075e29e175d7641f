// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Sh is the shell of the images. It becomes that of Debian's busybox, or bash if the
// environment has a variable such as data-1: Debian's busybox hides those from its
// children, and the busybox of Kubernetes' images does not.
package main

import (
	"os"
	"strings"
	"syscall"
)

func main() {
	shell := "/bin/busybox"
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if strings.ContainsFunc(name, func(r rune) bool {
			return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		}) {
			shell = "/bin/bash"
		}
	}
	err := syscall.Exec(shell, os.Args, os.Environ())
	println(shell, err.Error())
	os.Exit(127)
}
