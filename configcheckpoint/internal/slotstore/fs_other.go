// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix || aix || solaris

package slotstore

import (
	"io/fs"
	"os"
)

// Without the system calls of Unix a store has no lock, no check of the owner
// and no flush of directories. The package comment of configcheckpoint says what
// that costs.

func checkOwner(fs.FileInfo) error { return nil }

func syncDirFile(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	return dir.Close()
}
