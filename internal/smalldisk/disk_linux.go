// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package smalldisk mounts small file systems that tests fill.
package smalldisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// A Disk is a file system in memory. Its methods must not be called concurrently.
type Disk struct {
	Dir     string
	mounted bool
}

// Capacity is the size of a Disk: enough for what a test stores, and so little that it is filled quickly.
type Capacity struct {
	MiB   int
	Files int // 0 is the kernel's default
}

// Mount creates dir, as a file system of its own if this process may mount one; see Mounted.
func Mount(dir string, c Capacity) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	options := fmt.Sprintf("mode=0700,size=%dm", c.MiB)
	if c.Files > 0 {
		options += fmt.Sprint(",nr_inodes=", c.Files)
	}
	err := syscall.Mount("kubewright-test", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, options)
	switch {
	case errors.Is(err, syscall.EPERM):
		return &Disk{Dir: dir}, nil
	case err != nil:
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	return &Disk{Dir: dir, mounted: true}, nil
}

// Mounted reports whether Mount made a file system. Otherwise the directory must not be filled.
func (d *Disk) Mounted() bool { return d.mounted }

func (d *Disk) filler() string { return filepath.Join(d.Dir, "filler") }

// FillSpace uses up all free space.
func (d *Disk) FillSpace() error {
	if err := os.MkdirAll(d.filler(), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(d.filler(), "data"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for size := len(block); size > 0 && err == nil; {
		if _, err = f.Write(block[:size]); errors.Is(err, syscall.ENOSPC) {
			size, err = size/2, nil
		}
	}
	return errors.Join(err, f.Close())
}

// FillInodes uses up all free inodes.
func (d *Disk) FillInodes() error {
	if err := os.MkdirAll(d.filler(), 0o700); err != nil {
		return err
	}
	for {
		f, err := os.CreateTemp(d.filler(), "")
		if errors.Is(err, syscall.ENOSPC) {
			return nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// Free removes the files that fill the disk.
func (d *Disk) Free() error { return os.RemoveAll(d.filler()) }

// KeepFull calls fill, FillSpace or FillInodes, until ctx is done, because other processes may free space. Then it frees
// the disk.
func (d *Disk) KeepFull(ctx context.Context, fill func() error) error {
	for {
		if err := fill(); err != nil {
			return errors.Join(err, d.Free())
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return d.Free()
		}
	}
}

// Unmount removes the disk, if it is still there. An error means that a process still uses it.
func (d *Disk) Unmount() error {
	if !d.mounted {
		return nil
	}
	err := syscall.Unmount(d.Dir, 0)
	if err == nil || errors.Is(err, syscall.EINVAL) { // EINVAL: not mounted
		return nil
	}
	return errors.Join(fmt.Errorf("unmount %s: %w", d.Dir, err), syscall.Unmount(d.Dir, syscall.MNT_DETACH))
}
