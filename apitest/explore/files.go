// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// copyTree copies a file, or a directory with all that is in it, as a power failure would
// leave it: with modes and times, and with sockets on which nobody listens. Links into the
// directory from point into the directory to.
func copyTree(from, to, name string) error {
	source, target := filepath.Join(from, name), filepath.Join(to, name)
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case 0:
		err = copyFile(source, target)
	case fs.ModeDir:
		err = copyDir(from, to, name)
	case fs.ModeSymlink:
		link, err := os.Readlink(source)
		if err != nil {
			return err
		}
		if inside, ok := strings.CutPrefix(link, from+string(filepath.Separator)); ok {
			link = filepath.Join(to, inside)
		}
		return os.Symlink(link, target)
	case fs.ModeSocket:
		err = leaveSocket(target)
	default:
		err = fmt.Errorf("%s is neither a file, a directory, a link nor a socket", source)
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(target, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(target, time.Time{}, info.ModTime())
}

func copyFile(source, target string) error {
	b, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return os.WriteFile(target, b, 0o600)
}

func copyDir(from, to, name string) error {
	if err := os.MkdirAll(filepath.Join(to, name), 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(from, name))
	if err != nil {
		return err
	}
	for _, e := range entries {
		err := copyTree(from, to, filepath.Join(name, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the dead process may still remove files
			return err
		}
	}
	return nil
}

// leaveSocket makes a socket on which nobody listens.
func leaveSocket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}
