// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Below returns the mount points at path and below it, the deepest first.
func Below(path string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return below(f, path)
}

// below is Below for a mountinfo and a path without symbolic links.
func below(mountinfo io.Reader, path string) (found []string, err error) {
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescape.Replace(fields[4])
		if point == path || strings.HasPrefix(point, path+"/") {
			found = append(found, point)
		}
	}
	// What was not read may be mounted below path, and is not to be deleted with it.
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	slices.Reverse(found)
	return found, nil
}

// longest is the length of the longest line that is read: an overlay of many layers has a long one.
const longest = 1 << 20

// unescape decodes the characters that the kernel escapes in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// UnmountBelow unmounts everything at path and below it, and nothing elsewhere.
func UnmountBelow(path string) error {
	points, err := Below(path)
	if err != nil {
		return err
	}
	for _, point := range points {
		// The host may have mounted something below the source of a bind mount, which
		// is then here, too. It must stay there.
		if err := syscall.Mount("", point, "", syscall.MS_PRIVATE, ""); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make the mount at %s private: %w", point, err)
		}
	}
	var errs []error
	for _, point := range points {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(errs...)
}
