// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cgroups

import (
	"context"
	"errors"
)

// Set returns errors.ErrUnsupported.
func (Tree) Set(string, Limits, bool) error { return errors.ErrUnsupported }

// CheckMemory returns nil, because there are no cgroups.
func (Tree) CheckMemory(string, int64) error { return nil }

// Dirs returns nothing, because there are no cgroups.
func (Tree) Dirs(string) []string { return nil }

// Remove does nothing, because there are no cgroups.
func (Tree) Remove(context.Context, string) error { return nil }
