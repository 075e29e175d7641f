// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package durable

import "syscall"

// writeThrough makes a write return when its data is on stable storage. It is
// O_DSYNC rather than O_SYNC: the length of a slot never changes and its times
// are never read, so flushing them would be a wasted journal commit.
const writeThrough = syscall.O_DSYNC
