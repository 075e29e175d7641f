// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix || aix || solaris

package dirlock

import "os"

// Lock does nothing: these systems have no flock.
func Lock(*os.File) error { return nil }
