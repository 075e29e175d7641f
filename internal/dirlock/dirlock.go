// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package dirlock keeps two processes from using one directory.
package dirlock

import "errors"

// ErrHeld is returned by Lock if the directory is open and locked elsewhere.
var ErrHeld = errors.New("another process uses the directory")
