// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mounts

// Below returns nothing, because nothing is mounted.
func Below(string) ([]string, error) { return nil, nil }

// UnmountBelow does nothing, because nothing is mounted.
func UnmountBelow(string) error { return nil }
