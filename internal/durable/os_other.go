// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix || aix || solaris

package durable

import (
	"io/fs"
	"os"
)

// Without the system calls of Unix a directory has no lock, no check of its owner
// and no flush of its names. The package comment of configcheckpoint says what that
// costs.

const nonBlock, onlyDir = 0, 0

func checkOwner(fs.FileInfo) error { return nil }

func syncDirFile(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	return dir.Close()
}
