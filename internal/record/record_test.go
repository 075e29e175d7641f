// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	var v struct{ N int }
	if ok, err := Read(path, &v); ok || err != nil {
		t.Errorf("a file that is not there: %v, %v", ok, err)
	}
	for n := range 2 {
		if err := Write(path, struct{ N int }{n}); err != nil {
			t.Fatal(err)
		}
		if ok, err := Read(path, &v); !ok || err != nil || v.N != n {
			t.Errorf("after %d was written: %v, %v, %v", n, v.N, ok, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: others can read it", info.Mode(), err)
	}
}

// A partial write that a crash leaves behind is not read.
func TestTornWriteIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	if err := Write(path, 1); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".tmp", []byte(`{"half`), 0o600); err != nil {
		t.Fatal(err)
	}
	var n int
	if ok, err := Read(path, &n); !ok || err != nil || n != 1 {
		t.Errorf("%v, %v, %v", n, ok, err)
	}
	if err := Write(path, 2); err != nil {
		t.Fatalf("after a torn write: %v", err)
	}
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.json")
	if err := os.WriteFile(path, []byte("}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var v any
	if ok, err := Read(path, &v); ok || err == nil {
		t.Errorf("nonsense: %v, %v", ok, err)
	}
	if err := Write(filepath.Join(dir, "absent", "r.json"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if err := Write(path, func() {}); err == nil {
		t.Error("a function was written")
	}
}
