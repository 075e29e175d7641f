// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// mountsBelow returns the mount points at path and below it, the deepest first.
func mountsBelow(path string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	var found []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescape.Replace(fields[4])
		if point == path || strings.HasPrefix(point, path+"/") {
			found = append(found, point)
		}
	}
	slices.Reverse(found)
	return found, nil
}

// unescape decodes the characters that the kernel escapes in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// unmountBelow unmounts everything at path and below it.
func unmountBelow(path string) error {
	points, err := mountsBelow(path)
	if err != nil {
		return err
	}
	for _, point := range points {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}
