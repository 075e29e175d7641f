// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// osFS is the fsys of a real directory. Every access goes through an os.Root,
// so that no symbolic link in the directory leads out of it.
type osFS struct {
	path string
	root *os.Root
	lock *os.File // the directory itself: the lock leaves no file behind
}

var _ fsys = (*osFS)(nil)

func (o *osFS) open() (err error) {
	if err := os.Mkdir(o.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		// The directory of a read-only file system may be there all the same.
		if _, statErr := os.Stat(o.path); statErr != nil {
			return err
		}
	}
	root, err := os.OpenRoot(o.path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.Close())
		}
	}()
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.Close())
		}
	}()
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	if err := checkOwner(info); err != nil {
		return fmt.Errorf("%s: %w", o.path, err)
	}
	if err := lockDir(dir); err != nil {
		return fmt.Errorf("%s: %w", o.path, err)
	}
	o.root, o.lock = root, dir
	return nil
}

func (o *osFS) mkdir(name string) error { return o.root.Mkdir(name, 0o700) }

func (o *osFS) readFile(name string, limit int) ([]byte, error) {
	// Without this check a FIFO put in the file's place would block the boot.
	info, err := o.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := o.root.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	return data, errors.Join(err, f.Close())
}

func (o *osFS) readDir(name string) ([]string, error) {
	dir, err := o.root.Open(name)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	return names, errors.Join(err, dir.Close())
}

func (o *osFS) createFile(name string) (file, error) {
	return o.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (o *osFS) overwrite(name string, data []byte) error {
	f, err := o.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|writeThrough, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Close())
}

func (o *osFS) rename(from, to string) error { return o.root.Rename(from, to) }

func (o *osFS) remove(name string) error { return o.root.Remove(name) }

func (o *osFS) syncDir(name string) error {
	if name == ".." {
		return syncDirFile(os.Open(filepath.Dir(o.path)))
	}
	return syncDirFile(o.root.Open(name))
}

func (o *osFS) close() error {
	if o.root == nil {
		return nil
	}
	err := errors.Join(o.lock.Close(), o.root.Close())
	o.root, o.lock = nil, nil
	return err
}

// bootID returns the identity of the machine's present boot, or "" where the
// system has none.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return tidy(string(id), 64)
}
