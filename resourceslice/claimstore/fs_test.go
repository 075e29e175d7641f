// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"fmt"
	"syscall"

	"github.com/kubewright/kubewright/internal/durable"
)

// fullDisk is a disk without free space: only bytes that are there can be written.
type fullDisk struct{ durable.FS }

func (d *fullDisk) WriteFile(name string, _ []byte) error {
	return fmt.Errorf("%s: %w", name, syscall.ENOSPC)
}

func (d *fullDisk) Overwrite(name string, data []byte, offset int, flush bool) error {
	before, err := d.ReadFile(name, maxJournal)
	if err != nil {
		return err
	}
	if offset+len(data) > len(before) {
		return fmt.Errorf("%s: %w", name, syscall.ENOSPC)
	}
	return d.FS.Overwrite(name, data, offset, flush)
}

// brokenFile is a disk that fails the first write into a file, and all until it is replaced.
type brokenFile struct {
	durable.FS
	writes   int
	replaced bool
}

func (d *brokenFile) Rename(from, to string) error {
	d.replaced = true
	return d.FS.Rename(from, to)
}

func (d *brokenFile) Overwrite(name string, data []byte, offset int, flush bool) error {
	d.writes++
	if !d.replaced {
		return fmt.Errorf("%s: %w", name, syscall.EIO)
	}
	return d.FS.Overwrite(name, data, offset, flush)
}

// unsyncedDir is a disk that can replace a file and then fails to flush the directory,
// while it fails.
type unsyncedDir struct {
	durable.FS
	fails   bool
	renames int
}

func (d *unsyncedDir) Rename(from, to string) error {
	d.renames++
	return d.FS.Rename(from, to)
}

func (d *unsyncedDir) SyncDir(name string) error {
	if d.fails {
		return fmt.Errorf("%s: %w", name, syscall.EIO)
	}
	return d.FS.SyncDir(name)
}

func (d *unsyncedDir) Overwrite(name string, data []byte, offset int, flush bool) error {
	if d.fails {
		return fmt.Errorf("%s: %w", name, syscall.EIO)
	}
	return d.FS.Overwrite(name, data, offset, flush)
}

// readOnly is a disk that can't be written.
type readOnly struct{ durable.FS }

func (d *readOnly) WriteFile(name string, _ []byte) error {
	return fmt.Errorf("%s: %w", name, syscall.EROFS)
}

func (d *readOnly) Rename(from, _ string) error { return fmt.Errorf("%s: %w", from, syscall.EROFS) }

func (d *readOnly) Overwrite(name string, _ []byte, _ int, _ bool) error {
	return fmt.Errorf("%s: %w", name, syscall.EROFS)
}
