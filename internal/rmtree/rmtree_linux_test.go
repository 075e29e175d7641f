// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rmtree

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/internal/rmtree/rmtreetest"
)

// TestAReadOnlyTree removes what a Go module cache looks like, as a user who is not
// root.
func TestAReadOnlyTree(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "cache")
	write(t, filepath.Join(dir, "example.com@v1", "deep", "er", "file"))
	for _, name := range []string{"example.com@v1/deep/er/file", "example.com@v1/deep/er", "example.com@v1/deep", "example.com@v1"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o500); err != nil {
			t.Fatal(err)
		}
	}
	if err := rmtreetest.AsNobody(t, parent, func() error { return Remove(dir) }); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
}

// TestADeepTree removes a tree that has more levels than a process has descriptors.
func TestADeepTree(t *testing.T) {
	const levels = 2_000
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Open(dir, syscall.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := syscall.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := syscall.Openat(at, "d", syscall.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Close(at)
		at = next
	}
	_ = syscall.Close(at)
	var before, limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	limit = before
	limit.Cur = 200
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	err = Remove(dir)
	if e := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); e != nil {
		t.Fatal(e)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestAnImmutableFile is what Remove can't delete: the rest goes, and the error says
// what is left.
func TestAnImmutableFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	write(t, filepath.Join(dir, "a", "b", "immutable"))
	write(t, filepath.Join(dir, "a", "c", "file"))
	undo := rmtreetest.Immutable(t, filepath.Join(dir, "a", "b", "immutable"))
	err := Remove(dir)
	if err == nil || !strings.Contains(err.Error(), "immutable") {
		t.Errorf("%v, want an error that names the file", err)
	}
	var left []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, path)
		}
		return nil
	})
	if len(left) != 1 {
		t.Fatalf("left: %v", left)
	}
	undo()
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
}
