// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import "syscall"

// freeSpace measures the file system of path. What only root may use is not free.
func freeSpace(path string) (space, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return space{}, err
	}
	size := uint64(s.Bsize)
	return space{bytes: s.Blocks * size, freeBytes: s.Bavail * size, inodes: s.Files, freeInodes: s.Ffree}, nil
}
