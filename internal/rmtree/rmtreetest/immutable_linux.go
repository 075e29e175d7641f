// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package rmtreetest makes files that can't be deleted or read, for tests.
package rmtreetest

import (
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// Immutable makes a file immutable until the end of the test, or until undo is called.
// It skips the test if the user or the file system can't do that.
func Immutable(t *testing.T, name string) (undo func()) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	set := func(on bool) error {
		const getFlags, setFlags, immutable = 0x80086601, 0x40086602, 0x10 // of ioctl_iflags(2)
		var flags int32
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), getFlags, uintptr(unsafe.Pointer(&flags))); errno != 0 {
			return errno
		}
		flags &^= immutable
		if on {
			flags |= immutable
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), setFlags, uintptr(unsafe.Pointer(&flags))); errno != 0 {
			return errno
		}
		return nil
	}
	if err := set(true); err != nil {
		_ = f.Close()
		t.Skipf("this user or file system can't make a file immutable: %v", err)
	}
	undo = func() {
		if err := set(false); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		undo()
		_ = f.Close()
	})
	return undo
}
