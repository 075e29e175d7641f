// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroups limits and removes control groups of version 1 and 2. Only Linux has
// any.
package cgroups

// A Tree is the directory at which the cgroups are mounted: those of version 2 directly,
// and those of version 1 with a directory per controller.
type Tree string

// Kernel is the Tree of the machine.
const Kernel Tree = "/sys/fs/cgroup"

// Limits are the limits of a cgroup with everything below it.
type Limits struct {
	// Shares is the weight against other cgroups, 1024 for a CPU. The least is 2.
	Shares int64
	// Quota is the CPU time in microseconds per 100 ms. Zero: no limit.
	Quota int64
	// Memory is the memory in bytes. Zero: no limit.
	Memory int64
}
