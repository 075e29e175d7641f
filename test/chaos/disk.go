// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// A disk is a small file system for the kubelet's directory that can be filled.
type disk struct {
	dir     string
	mounted bool
}

// diskSize and diskInodes are the capacity of the disk: much more than the pods
// need, and small enough to be filled quickly.
const (
	diskSize     = "48m"
	diskMaxFiles = "8000"
)

// mountDisk creates the directory, on its own file system if this process may
// mount one.
func mountDisk(dir string) (*disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d := &disk{dir: dir}
	err := syscall.Mount("kubewright-chaos", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=0700,size="+diskSize+",nr_inodes="+diskMaxFiles)
	if errors.Is(err, syscall.EPERM) {
		return d, nil
	}
	d.mounted = err == nil
	return d, err
}

func (d *disk) filler() string { return filepath.Join(d.dir, "filler") }

// fillSpace uses up all free space.
func (d *disk) fillSpace() error {
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

// fillInodes uses up all free inodes.
func (d *disk) fillInodes() error {
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

// free removes the files that fill the disk.
func (d *disk) free() error { return os.RemoveAll(d.filler()) }

// keepFull fills the disk until ctx is done, and fills it again if the kubelet
// frees space.
func (d *disk) keepFull(ctx context.Context, fill func() error) error {
	if err := os.Mkdir(d.filler(), 0o700); err != nil {
		return err
	}
	for {
		if err := fill(); err != nil {
			return errors.Join(err, d.free())
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return d.free()
		}
	}
}

// unmount removes the disk. An error means that a process still uses it.
func (d *disk) unmount() error {
	if !d.mounted {
		return nil
	}
	if err := syscall.Unmount(d.dir, 0); err != nil {
		return errors.Join(fmt.Errorf("unmount %s: %w", d.dir, err), syscall.Unmount(d.dir, syscall.MNT_DETACH))
	}
	d.mounted = false
	return nil
}
