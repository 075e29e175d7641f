// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !aix && !solaris

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

const (
	// nonBlock makes opening a FIFO return. It has no effect on a regular file.
	nonBlock = syscall.O_NONBLOCK
	// onlyDir makes opening anything but a directory fail.
	onlyDir = syscall.O_DIRECTORY
)

// checkOwner refuses a file or directory that another user could write: a user
// who can write a store decides what the node does. Root can write anything, and a
// group of this process is trusted: with fsGroup, the kubelet makes a volume and all
// that is in it writable for the group of the Pod.
func checkOwner(info fs.FileInfo) error {
	mode := info.Mode().Perm()
	if mode&0o002 != 0 {
		return fmt.Errorf("%w: mode %#o lets other users write; set it to 0700 for a directory, 0600 for a file", ErrPermissions, mode)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if uid := os.Geteuid(); stat.Uid != 0 && int(stat.Uid) != uid {
		return fmt.Errorf("%w: owned by uid %d, and this process runs as %d", ErrPermissions, stat.Uid, uid)
	}
	if mode&0o020 != 0 && !inGroup(int(stat.Gid)) {
		return fmt.Errorf("%w: mode %#o lets group %d write, and this process is not in it; set it to 0700 for a directory, 0600 for a file", ErrPermissions, mode, stat.Gid)
	}
	return nil
}

// inGroup reports whether this process belongs to a group.
func inGroup(gid int) bool {
	groups, err := os.Getgroups()
	return gid == os.Getegid() || err == nil && slices.Contains(groups, gid)
}

// syncDirFile flushes and closes dir, unless opening it failed with err.
func syncDirFile(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
