// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package durable is the file-system layer of the stores that survive a crash, a
// power cut and a full disk: the calls that such a store needs, each with the
// state of the disk when it returns.
//
// A store must be written against [FS], so that its tests can run on package
// crashfs, which enumerates the images that a power cut could leave.
//
// Data and names become durable separately. WriteFile and Overwrite flush the
// data of a file; SyncDir flushes the names in a directory. [Replace] does both in
// the right order for a small file that is always written as a whole.
package durable

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/kubewright/kubewright/internal/dirlock"
)

// tmpSuffix is appended to the names of files that are not written completely.
const tmpSuffix = ".tmp"

var (
	// ErrLocked is returned by FS.Open if another process has the directory open.
	ErrLocked = dirlock.ErrHeld
	// ErrPermissions is returned by FS.Open if another user could write the
	// directory.
	ErrPermissions = errors.New("the directory is not protected")
	// ErrNotRegular is the error of a name that is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
)

// An FS is one directory. [Dir] returns a real one; package crashfs has one that
// forgets, at a crash, all data that was never flushed.
//
// Names are slash-separated and relative to the directory; "." is the
// directory and ".." its parent. Errors are those of package os. Between Open and
// Close all other methods are safe for concurrent use.
type FS interface {
	// Open creates the directory if it is missing, opens it, checks who may
	// write it, and locks it. It may be called again after an error.
	Open() error
	// Mkdir creates a directory with mode 0700.
	Mkdir(name string) error
	// ReadFile returns at most limit bytes of a regular file.
	ReadFile(name string, limit int) ([]byte, error)
	// AppendFile appends at most limit bytes of a regular file to buf.
	AppendFile(buf []byte, name string, limit int) ([]byte, error)
	// ReadDir returns the names in a directory.
	ReadDir(name string) ([]string, error)
	// WriteFile creates or truncates a file with mode 0600, and writes and
	// flushes its data. After an error the file may be there in part.
	WriteFile(name string, data []byte) error
	// Overwrite writes data over a file from offset on. It creates the file
	// with mode 0600 if it is missing, and never truncates it. A power cut spoils
	// no byte outside of data that was flushed before. If flush is set,
	// the write and its flush are one system call, and the data is on stable
	// storage when Overwrite returns nil: a process killed at any moment leaves
	// no bytes behind that another process could read and a power cut could
	// still take away.
	Overwrite(name string, data []byte, offset int, flush bool) error
	// Rename renames a file, and replaces the file at to.
	Rename(from, to string) error
	// Remove removes a file.
	Remove(name string) error
	// SyncDir flushes the names in a directory. It returns nil if the system
	// can't flush that directory.
	SyncDir(name string) error
	// Close releases the lock.
	Close() error
}

// Replace makes data the content of the file, durably: after a crash at any
// moment the file has its old content or the new one, or is missing if it was
// missing before. The directory of the file must be durable. If Replace returns an
// error, the file may have either content. Two calls for one name must not
// overlap.
func Replace(disk FS, name string, data []byte) error {
	tmp := name + tmpSuffix
	err := disk.WriteFile(tmp, data)
	if err == nil {
		err = disk.Rename(tmp, name)
	}
	if err != nil {
		// What was written may hold the last free space.
		if e := disk.Remove(tmp); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return err
	}
	return disk.SyncDir(path.Dir(name))
}

// RemoveLeftovers removes the files that a Replace in the directory did not
// finish because its process died. No Replace may be running. Errors are ignored:
// the files do no harm, and the next call tries again.
func RemoveLeftovers(disk FS, dir string) {
	names, err := disk.ReadDir(dir)
	if err != nil {
		return
	}
	for _, name := range names {
		if strings.HasSuffix(name, tmpSuffix) {
			_ = disk.Remove(path.Join(dir, name))
		}
	}
}
