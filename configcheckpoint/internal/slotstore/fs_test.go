// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package slotstore_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/durable"
)

// TestParentThatCanNotBeOpened: a store below a directory of mode 0711, which the
// agent can enter and not read, takes commits.
func TestParentThatCanNotBeOpened(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	base, err := os.MkdirTemp("/tmp", "slotstore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	parent := filepath.Join(base, "parent")
	dir := filepath.Join(parent, "store")
	if err := errors.Join(os.Chmod(base, 0o711), os.Mkdir(parent, 0o711), os.Chmod(parent, 0o711), os.Mkdir(dir, 0o700), os.Chown(dir, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	result := make(chan error)
	go func() {
		// The thread ends with the goroutine, since it is not unlocked.
		runtime.LockOSThread()
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), nobody, ^uintptr(0)); errno != 0 {
			result <- errno
			return
		}
		if _, err := os.Open(parent); !errors.Is(err, fs.ErrPermission) {
			result <- errors.New("the parent can be opened")
			return
		}
		s := slotstore.New(config(slotstore.Dir(dir)))
		damage, err := s.Open()
		result <- errors.Join(damage, err, put(s, "A"), put(s, "B"), s.Close())
	}()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestFilesThatOthersCanWriteAreRefused, inside a directory that they can't
// write, and without changing them.
func TestFilesThatOthersCanWriteAreRefused(t *testing.T) {
	for _, name := range []string{slotstore.SlotA, slotstore.SlotB, slotstore.NoteFile, slotstore.PayloadDir} {
		for _, mode := range []fs.FileMode{0o022, 0o020, 0o002} {
			dir := filepath.Join(t.TempDir(), "store")
			s := opened(t, slotstore.Dir(dir))
			if err := errors.Join(put(s, "A"), s.Close()); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			if err := os.Chmod(path, 0o600|mode); err != nil {
				t.Fatal(err)
			}
			if mode&0o002 == 0 { // the group must be that of others
				if os.Geteuid() != 0 {
					continue
				}
				if err := os.Chown(path, -1, 12345); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.Open(); !errors.Is(err, durable.ErrPermissions) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s with mode %v: %v, want ErrPermissions with the path", name, 0o600|mode, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600|mode {
				t.Errorf("%s was changed: %v, %v", name, info, err)
			}
			if os.Geteuid() != 0 {
				continue
			}
			if err := errors.Join(os.Chmod(path, 0o700), os.Chown(path, 12345, 12345)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Open(); !errors.Is(err, durable.ErrPermissions) || !strings.Contains(err.Error(), "12345") {
				t.Errorf("%s of another user: %v, want ErrPermissions with the owner", name, err)
			}
		}
	}
}
