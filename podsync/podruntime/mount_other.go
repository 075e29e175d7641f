// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package podruntime

// mountMemory reports that there is no tmpfs.
func mountMemory(string, int64) (bool, error) { return false, nil }

// isMountPoint reports that there are no mounts.
func isMountPoint(string) bool { return false }

// bindBelow reports that there are no bind mounts.
func bindBelow(_, _, _ string) (bool, error) { return false, nil }
