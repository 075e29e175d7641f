// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package crilog

import "syscall"

// noFollow makes opening a symbolic link an error, and keeps opening a FIFO from waiting.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
