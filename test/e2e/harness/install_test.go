// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	put := func(content string) string {
		t.Helper()
		executable := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(executable, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		target, err := install(executable, dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(target); err != nil || string(got) != content {
			t.Errorf("installed %q, %v, want %q", got, err, content)
		}
		return target
	}
	first := put("one")
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	if again := put("one"); again != first {
		t.Errorf("the same content is at %s and %s", first, again)
	}
	// It is the same file, because it may be running.
	if after, err := os.Stat(first); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was replaced, %v", err)
	}
	long := time.Now().Add(-2 * keepUnused)
	if err := os.Chtimes(first, long, long); err != nil {
		t.Fatal(err)
	}
	second := put("two")
	if second == first {
		t.Error("other content has the same name")
	}
	if _, err := os.Stat(first); err == nil {
		t.Error("an unused launcher is never removed")
	}
}
