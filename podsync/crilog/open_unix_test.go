// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package crilog

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestOnlyARegularFileIsALog: a container with a hostPath can put anything in the place
// of its log.
func TestOnlyARegularFileIsALog(t *testing.T) {
	dir := t.TempDir()
	secret, link, pipe := filepath.Join(dir, "secret"), filepath.Join(dir, "0.log"), filepath.Join(dir, "1.log")
	if err := os.WriteFile(secret, []byte("root:x:0:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe, dir} {
		if r, err := Open(path, Options{Tail: -1}); err == nil {
			t.Errorf("%s was opened", path)
			_ = r.Close()
		}
		if data, err := Tail(path, 100); err == nil {
			t.Errorf("the tail of %s is %q", path, data)
		}
	}
}
