// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package smalldisk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/internal/smalldisk"
)

func TestADiskIsFilledAndFreed(t *testing.T) {
	d, err := smalldisk.Mount(filepath.Join(t.TempDir(), "disk"), smalldisk.Capacity{MiB: 1, Files: 20})
	if err != nil {
		t.Fatal(err)
	}
	if !d.Mounted() {
		t.Skip("this process may not mount a file system: run the test as root")
	}
	t.Cleanup(func() {
		for range 2 {
			if err := d.Unmount(); err != nil {
				t.Error(err)
			}
		}
	})
	write := func(name string) error { return os.WriteFile(filepath.Join(d.Dir, name), []byte("text"), 0o600) }
	for name, fill := range map[string]func() error{"space": d.FillSpace, "inodes": d.FillInodes} {
		if err := fill(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := write("during-" + name); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: a write returned %v, want ENOSPC", name, err)
		}
		if err := d.Free(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := write("after-" + name); err != nil {
			t.Errorf("%s: after Free: %v", name, err)
		}
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.KeepFull(done, d.FillSpace); err != nil {
		t.Error(err)
	}
	if err := write("after-KeepFull"); err != nil {
		t.Error(err)
	}
}
