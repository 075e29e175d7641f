// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package slotstore_test

// The tests that start child processes are for Linux.
const childEnv = "SLOTSTORE_CHILD"

func runChild() int { return 1 }
