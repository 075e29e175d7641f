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
	"syscall"
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

// openFile opens a regular file. Without the check a FIFO that somebody put in
// its place would block the boot.
func (o *osFS) openFile(name string, flag int) (*os.File, error) {
	info, err := o.root.Lstat(name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err == nil && !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	return o.root.OpenFile(name, flag, 0o600)
}

func (o *osFS) readFile(name string, limit int) ([]byte, error) {
	f, err := o.openFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	return data, errors.Join(err, f.Close())
}

func (o *osFS) readDir(name string) ([]string, error) {
	dir, err := o.openDir(name)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	return names, errors.Join(err, dir.Close())
}

func (o *osFS) createFile(name string) (file, error) {
	return o.openFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
}

func (o *osFS) overwrite(name string, data []byte) error {
	f, err := o.openFile(name, os.O_WRONLY|os.O_CREATE|writeThrough)
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
	return syncDirFile(o.openDir(name))
}

// openDir opens a directory, and like openFile does not wait for a FIFO.
func (o *osFS) openDir(name string) (*os.File, error) {
	info, err := o.root.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	return o.root.Open(name)
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
