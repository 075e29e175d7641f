// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

// The names in a store's directory.
const (
	slotA      = "slot.a"
	slotB      = "slot.b"
	badSuffix  = ".bad"
	payloadDir = "p"
	tmpSuffix  = ".tmp"
)

// fsys is what a store asks of the file system under its directory. The tests
// put one in its place that forgets, at a crash, what was never flushed.
//
// Names are slash-separated and relative to the directory; "." is the
// directory and ".." its parent. Errors are those of package os.
type fsys interface {
	// open creates the directory where it is missing, opens it, checks who may
	// write it, and locks it. It may be called again after an error.
	open() error
	// mkdir creates a directory with mode 0700.
	mkdir(name string) error
	// readFile returns at most limit bytes of a regular file.
	readFile(name string, limit int) ([]byte, error)
	// readDir returns the names in a directory.
	readDir(name string) ([]string, error)
	// createFile opens a file with mode 0600 for writing, empty.
	createFile(name string) (file, error)
	// overwrite writes data over the beginning of a file, which it creates with
	// mode 0600 where it is missing and never truncates. When it returns nil
	// the bytes are on stable storage. The write and its flush are one system
	// call: a process killed at any moment leaves no bytes behind that another
	// process could read and a power cut could still take away.
	overwrite(name string, data []byte) error
	rename(from, to string) error
	remove(name string) error
	// syncDir flushes the entries of a directory.
	syncDir(name string) error
	// close gives up the lock.
	close() error
}

// file is an open file to write once.
type file interface {
	Write([]byte) (int, error)
	Sync() error
	Close() error
}
