// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestNamesThatChangeWhileTheyAreOpened: another process puts something else in the place of
// a file, between the two system calls that open it. No call blocks, and what is written is
// the file that was seen, or nothing.
func TestNamesThatChangeWhileTheyAreOpened(t *testing.T) {
	parent := t.TempDir()
	path, outside := filepath.Join(parent, "dir"), filepath.Join(parent, "outside")
	name, other := filepath.Join(path, "name"), filepath.Join(path, "other")
	disk := Dir(path).(*osFS)
	if err := disk.Open(); err != nil {
		t.Fatal(err)
	}
	for what, plant := range map[string]func() error{
		"a link out":    func() error { return os.Symlink(outside, name) },
		"a link within": func() error { return os.Symlink("other", name) },
		"a FIFO":        func() error { return syscall.Mkfifo(name, 0o600) },
		"a directory":   func() error { return os.Mkdir(name, 0o700) },
		"another file":  func() error { return os.Rename(other, name) },
		"nothing":       func() error { return nil },
	} {
		for how, flag := range map[string]int{"read": os.O_RDONLY, "written": os.O_WRONLY | os.O_CREATE, "flushed": os.O_WRONLY | os.O_CREATE | writeThrough} {
			for _, before := range []string{"a file", "no file"} {
				for _, file := range []string{name, outside, other} {
					if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, []byte("text"), 0o600)); err != nil {
						t.Fatal(err)
					}
				}
				seen, err := disk.root.Lstat("name")
				if err != nil {
					t.Fatal(err)
				}
				if before == "no file" {
					seen = nil
				}
				if err := errors.Join(os.Remove(name), plant()); err != nil {
					t.Fatal(err)
				}
				opened := make(chan *os.File, 1)
				go func() {
					f, err := disk.openSeen("name", flag, seen)
					if err != nil {
						f = nil
					}
					opened <- f
				}()
				var f *os.File
				select {
				case f = <-opened:
				case <-time.After(10 * time.Second):
					t.Fatalf("%s, then %s, %s: opening it blocks", before, what, how)
				}
				// Reading is harmless: the content is compared with its digest. What is not
				// there may be made.
				may := how == "read" && (what == "a link within" || what == "another file") || how != "read" && what == "nothing"
				if (f != nil) != may {
					t.Errorf("%s, then %s: %s: %v", before, what, how, f != nil)
				}
				if f != nil {
					if err := f.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		}
	}
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}

// TestWriteFileTruncates the file that it has opened.
func TestWriteFileTruncates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	disk := Dir(path)
	if err := disk.Open(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(disk.WriteFile("name", []byte("long text")), disk.WriteFile("name", []byte("text"))); err != nil {
		t.Fatal(err)
	}
	if data, err := disk.ReadFile("name", 100); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := disk.ReadFile("none", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}
