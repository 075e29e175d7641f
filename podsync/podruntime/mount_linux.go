// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/kubewright/kubewright/internal/mounts"
)

// mountMemory mounts a tmpfs of at most size bytes at path, 0 for no limit of its
// own. It reports false without an error if this process lacks the permission.
func mountMemory(path string, size int64) (bool, error) {
	options := "mode=0777"
	if size > 0 {
		options += ",size=" + strconv.FormatInt(size, 10)
	}
	err := syscall.Mount("tmpfs", path, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, options)
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mount a tmpfs at %s: %w", path, err)
	}
	return true, nil
}

// isMountPoint reports whether another file system is mounted at path.
func isMountPoint(path string) bool {
	var at, above syscall.Stat_t
	return syscall.Lstat(path, &at) == nil && syscall.Lstat(filepath.Dir(path), &above) == nil && at.Dev != above.Dev
}

// bindBelow mounts the file or directory rel of the directory base at target, in place
// of an earlier mount there. It reports false without an error if this process lacks
// the permission.
//
// A container may change the directory at any time. So rel is opened first, one element
// after the other, and the open file is mounted: no change can lead the mount
// elsewhere. A symbolic link in rel is an error, because rel was resolved before.
func bindBelow(base, rel, target string) (bool, error) {
	fd, dir, err := openBelow(base, rel)
	if err != nil {
		return false, err
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := mounts.UnmountBelow(target); err != nil {
		return false, err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if dir {
		err = os.MkdirAll(target, 0o700)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o700); err == nil {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return false, err
	}
	err = syscall.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", syscall.MS_BIND, "")
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mount at %s: %w", target, err)
	}
	return true, nil
}

// openBelow opens a file or directory without permission to read it, and reports
// whether it is a directory. The caller closes the descriptor.
func openBelow(base, rel string) (fd int, dir bool, err error) {
	const path = 0x200000 // O_PATH, which package syscall does not have
	open := func(at int, name string) (int, error) {
		for {
			fd, err := syscall.Openat(at, name, path|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
			if err != syscall.EINTR {
				return fd, err
			}
		}
	}
	if fd, err = open(-1, base); err != nil {
		return -1, false, fmt.Errorf("open %s: %w", base, err)
	}
	for name := range strings.SplitSeq(filepath.Clean(rel), "/") {
		next, err := open(fd, name)
		_ = syscall.Close(fd)
		if err != nil {
			return -1, false, fmt.Errorf("open %s in %s: %w", name, base, err)
		}
		fd = next
		var st syscall.Stat_t
		if err = syscall.Fstat(fd, &st); err == nil && st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
			err = errors.New("it has become a symbolic link")
		}
		if err != nil {
			_ = syscall.Close(fd)
			return -1, false, fmt.Errorf("open %s in %s: %w", name, base, err)
		}
		dir = st.Mode&syscall.S_IFMT == syscall.S_IFDIR
	}
	return fd, dir, nil
}
