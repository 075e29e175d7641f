// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package process is a podruntime.Runtime whose containers are processes of the
// machine: no image, no isolation, but exit codes that survive the program, and
// containers that outlive it. Package shim runs one process; this package gives it
// the environment and the volumes of a container, and reports its state to package
// podruntime.
package process
