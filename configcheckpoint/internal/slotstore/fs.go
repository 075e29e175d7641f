// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slotstore

import "errors"

// The names in a store's directory.
const (
	SlotA      = "slot.a"
	SlotB      = "slot.b"
	PayloadDir = "p"
	NoteFile   = "note"
	// BadSuffix is appended to the names of slots that were set aside.
	BadSuffix = ".bad"

	tmpSuffix = ".tmp"
)

// slotNames returns the names of the two slots, by index.
func slotNames() [2]string { return [2]string{SlotA, SlotB} }

var (
	// ErrLocked is returned by FS.Open if another process has the store open.
	ErrLocked = errors.New("configcheckpoint: another process uses the store")
	// ErrPermissions is returned by FS.Open if another user could write the
	// store.
	ErrPermissions = errors.New("configcheckpoint: the store is not protected")

	// errNotRegular is the error of a name that is not a regular file.
	errNotRegular = errors.New("not a regular file")
)

// An FS is the directory of a store. [Dir] returns a real one; package crashfs
// has one that forgets, at a crash, all data that was never flushed.
//
// Names are slash-separated and relative to the directory; "." is the
// directory and ".." its parent. Errors are those of package os.
type FS interface {
	// Open creates the directory if it is missing, opens it, checks who may
	// write it, and locks it. It may be called again after an error.
	Open() error
	// Mkdir creates a directory with mode 0700.
	Mkdir(name string) error
	// ReadFile returns at most limit bytes of a regular file.
	ReadFile(name string, limit int) ([]byte, error)
	// ReadDir returns the names in a directory.
	ReadDir(name string) ([]string, error)
	// WriteFile creates or truncates a file with mode 0600, and writes and
	// flushes its data. After an error the file may be there in part.
	WriteFile(name string, data []byte) error
	// Overwrite writes data over the beginning of a file. It creates the file
	// with mode 0600 if it is missing, and never truncates it. If flush is set,
	// the write and its flush are one system call, and the data is on stable
	// storage when Overwrite returns nil: a process killed at any moment leaves
	// no bytes behind that another process could read and a power cut could
	// still take away.
	Overwrite(name string, data []byte, flush bool) error
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
