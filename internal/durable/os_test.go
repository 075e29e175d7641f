// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/internal/durable"
)

// TestDirectoriesThatCanNotBeFlushed: the system has no flush for them.
func TestDirectoriesThatCanNotBeFlushed(t *testing.T) {
	proc, err := os.Open("/proc")
	if err != nil {
		t.Skip(err)
	}
	defer proc.Close()
	if err := proc.Sync(); !errors.Is(err, syscall.EINVAL) {
		t.Skipf("/proc can be flushed: %v", err)
	}
	if err := durable.Dir("/proc/store").SyncDir(".."); err != nil {
		t.Error(err)
	}
	if err := durable.Dir(filepath.Join(t.TempDir(), "gone", "store")).SyncDir(".."); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a parent that is gone: %v", err)
	}
}

// TestLock: while a directory is open, nobody else can open it.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	first, second := durable.Dir(path), durable.Dir(path)
	if err := first.Open(); err != nil {
		t.Fatal(err)
	}
	if err := second.Open(); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("Open of the second: %v, want ErrLocked", err)
	}
	if err := errors.Join(first.Close(), second.Open(), second.Close()); err != nil {
		t.Error(err)
	}
}
