// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rmtree

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "elsewhere", "kept"))
	tree := filepath.Join(dir, "tree")
	for i := range 3 * batch {
		write(t, filepath.Join(tree, "wide", fmt.Sprint(i)))
	}
	for i := range 50 {
		write(t, filepath.Join(tree, fmt.Sprint("d", i%7), "deeper", fmt.Sprint(i), "file"))
	}
	write(t, filepath.Join(tree, ".rmtree-1", "taken"))
	write(t, filepath.Join(tree, ".rmtree-2"))
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(tree, "d1", "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{tree, tree, filepath.Join(dir, "missing", "too")} {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "elsewhere", "kept")); err != nil {
		t.Error(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("elsewhere", link); err != nil {
		t.Fatal(err)
	}
	if err := Remove(link); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "elsewhere", "kept")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}
