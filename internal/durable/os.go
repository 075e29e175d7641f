// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/kubewright/kubewright/internal/dirlock"
)

// osFS is the FS of a real directory. Every access goes through an os.Root, so
// no symbolic link in the directory leads out of it.
type osFS struct {
	path    string
	trusted []string
	root    *os.Root
	lock    *os.File // the directory itself: the lock leaves no file behind
}

// Dir returns the FS of the directory at path. The parent of path must exist. Open
// checks that only this user can write the directory and the trusted names in it.
// Between Open and Close no other process can open it.
func Dir(path string, trusted ...string) FS {
	return &osFS{path: path, trusted: append([]string{"."}, trusted...)}
}

func (o *osFS) Open() (err error) {
	if err := os.Mkdir(o.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		// On a read-only file system the directory may exist anyway.
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
	if err := o.checkOwners(root); err != nil {
		return err
	}
	if err := dirlock.Lock(dir); err != nil {
		return fmt.Errorf("%s: %w", o.path, err)
	}
	o.root, o.lock = root, dir
	return nil
}

// checkOwners checks that only this user can write the trusted names.
func (o *osFS) checkOwners(root *os.Root) error {
	for _, name := range o.trusted {
		info, err := root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", filepath.Join(o.path, name), err)
		case !info.Mode().IsRegular() && !info.IsDir():
			continue // never opened; a link has mode 0777
		}
		if err := checkOwner(info); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(o.path, name), err)
		}
	}
	return nil
}

func (o *osFS) Mkdir(name string) error { return o.root.Mkdir(name, 0o700) }

// openFile opens a regular file, and with O_CREATE one that is not there.
func (o *osFS) openFile(name string, flag int) (*os.File, error) {
	info, err := o.root.Lstat(name)
	switch {
	case err == nil:
		return o.openSeen(name, flag, info)
	case errors.Is(err, fs.ErrNotExist):
		return o.openSeen(name, flag, nil)
	}
	return nil, err
}

// openSeen opens the regular file that Lstat has seen; nil is none. Another process may
// have put a link or a FIFO in its place in the meantime: openSeen does not block on it, and
// never returns the target of a link to be written.
func (o *osFS) openSeen(name string, flag int, seen fs.FileInfo) (*os.File, error) {
	notRegular := &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	switch {
	case seen == nil && flag&os.O_CREATE != 0:
		flag |= os.O_EXCL
	case seen != nil && !seen.Mode().IsRegular():
		return nil, notRegular
	}
	f, err := o.root.OpenFile(name, flag|nonBlock, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	// While a file is read, a Replace may give its name to another one.
	replaced := err == nil && seen != nil && flag&os.O_WRONLY != 0 && !os.SameFile(seen, info)
	if err == nil && (replaced || !info.Mode().IsRegular()) {
		err = notRegular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (o *osFS) ReadFile(name string, limit int) ([]byte, error) {
	return o.AppendFile(nil, name, limit)
}

func (o *osFS) AppendFile(buf []byte, name string, limit int) ([]byte, error) {
	f, err := o.openFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// The file may grow meanwhile, or have a size of 0 although it has data.
	data := bytes.NewBuffer(slices.Grow(buf, int(min(int64(limit), info.Size()))+bytes.MinRead))
	_, err = data.ReadFrom(io.LimitReader(f, int64(limit)))
	return data.Bytes(), errors.Join(err, f.Close())
}

func (o *osFS) ReadDir(name string) ([]string, error) {
	dir, err := o.openDir(name)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	return names, errors.Join(err, dir.Close())
}

func (o *osFS) WriteFile(name string, data []byte) error {
	f, err := o.openFile(name, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	// Only a file that openSeen has checked is truncated.
	err = f.Truncate(0)
	if err == nil {
		_, err = f.Write(data)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Sync(), f.Close())
}

func (o *osFS) Overwrite(name string, data []byte, offset int, flush bool) error {
	flag := os.O_WRONLY | os.O_CREATE
	if flush {
		flag |= writeThrough
	}
	f, err := o.openFile(name, flag)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, int64(offset))
	return errors.Join(err, f.Close())
}

func (o *osFS) Rename(from, to string) error { return o.root.Rename(from, to) }

func (o *osFS) Remove(name string) error { return o.root.Remove(name) }

func (o *osFS) SyncDir(name string) error {
	var err error
	if name == ".." {
		err = syncDirFile(os.Open(filepath.Dir(o.path)))
		// This process need not be able to read the parent: it may be the root
		// of a read-only file system, or have mode 0711.
		if isAny(err, syscall.EACCES, syscall.EPERM, syscall.EROFS) {
			return nil
		}
	} else {
		err = syncDirFile(o.openDir(name))
	}
	// Some file systems can't flush a directory; proc is one.
	if isAny(err, syscall.EINVAL, syscall.EBADF, syscall.ENOTSUP) {
		return nil
	}
	return err
}

// isAny reports whether err is one of errnos.
func isAny(err error, errnos ...syscall.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// openDir opens a directory. Like openFile it neither blocks on a FIFO nor follows a link that it has seen.
func (o *osFS) openDir(name string) (*os.File, error) {
	info, err := o.root.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	return o.root.OpenFile(name, os.O_RDONLY|onlyDir, 0)
}

func (o *osFS) Close() error {
	if o.root == nil {
		return nil
	}
	err := errors.Join(o.lock.Close(), o.root.Close())
	o.root, o.lock = nil, nil
	return err
}
