// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package podruntime

// mountMemory reports that there is no tmpfs.
func mountMemory(string, int64) (bool, error) { return false, nil }

// mountsBelow returns nothing, because mountMemory never mounts.
func mountsBelow(string) ([]string, error) { return nil, nil }

// unmountBelow does nothing, because mountMemory never mounts.
func unmountBelow(string) error { return nil }
