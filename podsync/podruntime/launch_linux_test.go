// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// allocated returns the bytes of memory that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The termination message and /etc/hosts of a container are files that it can write, so
// it can make them larger than the memory of the node.
func TestRewriteReadsNoMoreThanItCompares(t *testing.T) {
	const large = 64 << 20 // a hole, which takes no room
	for name, tc := range map[string]struct {
		old  string
		grow int64 // 0: not at all
		data string
	}{
		"an absent file":             {"", 0, "hosts"},
		"an absent file, no data":    {"", 0, ""},
		"other data":                 {"guest", 0, "hosts"},
		"less":                       {"host", 0, "hosts"},
		"more":                       {"hosts of before", 0, "hosts"},
		"a large file":               {"hosts", large, "hosts"},
		"a large file to be emptied": {"message", large, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			var before os.FileInfo
			if tc.old != "" {
				if err := os.WriteFile(path, []byte(tc.old), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(path, max(tc.grow, int64(len(tc.old)))); err != nil {
					t.Fatal(err)
				}
				before, _ = os.Stat(path)
			}
			if took := allocated(func() {
				if err := rewrite(path, []byte(tc.data), 0o666); err != nil {
					t.Fatal(err)
				}
			}); took > large/2 {
				t.Errorf("it took %d bytes of memory", took)
			}
			after, err := os.Stat(path)
			if err != nil || after.Size() != int64(len(tc.data)) || after.Mode() != 0o666 {
				t.Fatalf("the file has %v, %v", after, err)
			}
			if before != nil && !os.SameFile(before, after) {
				t.Error("containers have another file mounted")
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != tc.data {
				t.Errorf("%q, %v, want %q", data, err, tc.data)
			}
		})
	}
}

// A file with the same data is left alone: a container may have changed its mode.
func TestRewriteLeavesTheSameData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("hosts"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(path, []byte("hosts"), 0o644); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has %v, %v", info, err)
	}
}

// A container that sees the files of the node can put anything in their place.
func TestAFileOfAContainerThatIsNoFileDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	pipe, link, target := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "target")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, link, dir} {
		if err := rewrite(path, nil, 0o666); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	if data, err := os.ReadFile(target); err != nil || string(data) != "mine" {
		t.Errorf("the target of the link has %q, %v", data, err)
	}
	if message := tail(pipe, maxMessage); message != "" {
		t.Errorf("the message is %q", message)
	}
}
