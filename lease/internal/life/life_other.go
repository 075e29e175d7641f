// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package life

import "errors"

// Here returns a System that compares nothing.
func Here() *System {
	unknown := func() (string, error) { return "", errors.ErrUnsupported }
	return &System{Boot: unknown, Namespaces: unknown, Start: func(int) (string, error) { return unknown() }}
}
