// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package configcheckpoint

// The tests that start children are for Linux.
const childEnv = "CONFIGCHECKPOINT_CHILD"

func runChild() int { return 1 }
