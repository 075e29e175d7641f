// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rmtree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/internal/rmtree/rmtreetest"
)

// asNobody is the environment variable that makes the test binary a process without
// permissions that removes a directory.
const asNobody = "KUBEWRIGHT_RMTREE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asNobody); dir != "" {
		if err := Remove(dir); err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestAReadOnlyTree removes what a Go module cache looks like, as a user who is not
// root.
func TestAReadOnlyTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	parent, err := os.MkdirTemp("", "rmtree")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(parent) }()
	dir := filepath.Join(parent, "cache")
	write(t, filepath.Join(dir, "example.com@v1", "deep", "er", "file"))
	binary := filepath.Join(parent, "test")
	content, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(binary, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	err = filepath.Walk(parent, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if err := os.Chown(path, nobody, nobody); err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"example.com@v1/deep/er/file", "example.com@v1/deep/er", "example.com@v1/deep", "example.com@v1"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o500); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary)
	cmd.Dir = parent
	cmd.Env = append(os.Environ(), asNobody+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
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
