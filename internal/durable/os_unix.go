// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !aix && !solaris

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner refuses a file or directory that another user could write: a user
// who can write a store decides what the node does.
func checkOwner(info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%w: mode %#o lets other users write; set it to 0700 for a directory, 0600 for a file", ErrPermissions, mode)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: owned by uid %d, and this process runs as %d", ErrPermissions, stat.Uid, os.Geteuid())
	}
	return nil
}

// syncDirFile flushes and closes dir, unless opening it failed with err.
func syncDirFile(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
