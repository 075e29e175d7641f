// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package durable_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/durable/crashfs"
)

// counter is a store in its simplest form: one file whose content is the number of
// times that it was written.
type counter struct {
	disk durable.FS
	n    int
}

func (c *counter) open() error {
	if err := c.disk.Open(); err != nil {
		return err
	}
	durable.RemoveLeftovers(c.disk, ".")
	data, err := c.disk.ReadFile("n", 100)
	if err == nil {
		_, err = fmt.Sscan(string(data), &c.n)
		return err
	}
	return c.disk.SyncDir("..")
}

func (c *counter) add() error {
	if err := durable.Replace(c.disk, "n", fmt.Append(nil, c.n+1)); err != nil {
		return err
	}
	c.n++
	return nil
}

// live opens the counter and adds to it, until the disk crashes. It returns the
// number that was acknowledged.
func live(disk durable.FS) (acked int, crashed bool, err error) {
	c := &counter{disk: disk}
	defer func() {
		if p := recover(); p != nil {
			if _, crashed = p.(crashfs.Crashed); !crashed {
				panic(p)
			}
			acked = c.n
		}
	}()
	if err := c.open(); err != nil {
		return 0, false, err
	}
	for range 3 {
		if err := c.add(); err != nil {
			return c.n, false, err
		}
	}
	return c.n, false, nil
}

// noSync never flushes a directory.
type noSync struct{ *crashfs.FS }

func (noSync) SyncDir(string) error { return nil }

// violations lets a counter crash at every change, and returns the images in which
// an acknowledged number is lost.
func violations(off crashfs.Mutation, wrap func(*crashfs.FS) durable.FS) (found []string, images int) {
	for k := 1; ; k++ {
		disk := crashfs.New()
		disk.Off, disk.CrashAt = off, k
		acked, crashed, err := live(wrap(disk))
		if err != nil {
			return append(found, err.Error()), images
		}
		if !crashed {
			return found, images
		}
		disk.CrashAt = 0
		var next []*crashfs.FS
		var what []string
		for _, i := range disk.PowerCut(true) {
			next, what = append(next, disk.Boot(i)), append(what, i.What)
		}
		for _, killed := range disk.Killed() {
			next, what = append(next, killed), append(what, "killed")
		}
		for i, after := range next {
			images++
			c := &counter{disk: after}
			if err := c.open(); err != nil || c.n < acked || c.n > acked+1 {
				found = append(found, fmt.Sprintf("crash at change %d, %s: %d, %v; %d was acknowledged", k, what[i], c.n, err, acked))
			}
			for _, name := range after.Files() {
				if filepath.Ext(name) == ".tmp" {
					found = append(found, fmt.Sprintf("crash at change %d, %s: %s is left", k, what[i], name))
				}
			}
		}
	}
}

// TestReplace: a power cut or a kill at any change loses no acknowledged content,
// and the harness would notice each flush that is missing.
func TestReplace(t *testing.T) {
	found, images := violations(crashfs.Mutation{}, func(d *crashfs.FS) durable.FS { return d })
	for _, v := range found {
		t.Error(v)
	}
	if images < 50 {
		t.Errorf("%d images: the harness has lost its reach", images)
	}
	if found, _ := violations(crashfs.Mutation{FileFlush: true}, func(d *crashfs.FS) durable.FS { return d }); len(found) == 0 {
		t.Error("files are not flushed: nothing noticed")
	}
	if found, _ := violations(crashfs.Mutation{}, func(d *crashfs.FS) durable.FS { return noSync{d} }); len(found) == 0 {
		t.Error("directories are not flushed: nothing noticed")
	}
}

// TestReplaceThatFails returns the error, and leaves nothing behind that fills the
// disk.
func TestReplaceThatFails(t *testing.T) {
	for k := 1; ; k++ {
		disk := crashfs.New()
		c := &counter{disk: disk}
		if err := errors.Join(c.open(), c.add()); err != nil {
			t.Fatal(err)
		}
		before := disk.Changes()
		disk.Fail[before+k] = syscall.ENOSPC
		err := c.add()
		if disk.Changes() < before+k {
			break
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("change %d failed: %v", k, err)
		}
		if files := disk.Files(); len(files) != 2 {
			t.Errorf("change %d failed: files %q", k, files)
		}
		if err := c.add(); err != nil || c.n != 2 {
			t.Errorf("after change %d failed: %d, %v", k, c.n, err)
		}
	}
}
