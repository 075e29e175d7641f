// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rmtreetest

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

const nobody = 65534

// AsNobody gives dir, which is a t.TempDir, and all below to the user nobody, and calls f with
// the permissions of that user. Goroutines that f starts are still root. If this process is
// not root, AsNobody only calls f.
func AsNobody(t *testing.T, dir string, f func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		return f()
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // of the test
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with this goroutine
		if err := syscall.Setfsuid(nobody); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
