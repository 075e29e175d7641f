// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package durable

import "os"

// writeThrough makes a write return when its data is on stable storage.
const writeThrough = os.O_SYNC
