// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"io/fs"
	"syscall"
)

// diskSize returns the size of a file on its disk, its identity and the number of its
// names.
func diskSize(info fs.FileInfo) (size int64, id inode, names uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Size(), inode{}, 1
	}
	const block = 512 // the unit of Blocks, whatever the file system
	return st.Blocks * block, inode{uint64(st.Dev), st.Ino}, uint64(st.Nlink)
}
