// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package lineartest

import (
	"syscall"
	"time"
)

// processTime returns the CPU time of this process, and whether it is known.
func processTime() (time.Duration, bool) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err == nil
}
