// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix || aix || solaris

package configcheckpoint

import (
	"io/fs"
	"os"
)

// Without the calls of Unix a store has no lock, no check of the owner and no
// flush of directories: doc.go says what that costs.

func checkOwner(fs.FileInfo) error { return nil }

func lockDir(*os.File) error { return nil }

func syncDirFile(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	return dir.Close()
}
