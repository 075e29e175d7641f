// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package slotstore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/durable"
)

// The benchmarks run on the disk of the temporary directory (TMPDIR), which
// should be a real one: they measure how often it is flushed. Each one reports
// that number too.

// counting counts the flushes of the disk that a store asks for.
type counting struct {
	durable.FS
	flushes int
}

func (c *counting) Overwrite(name string, data []byte, offset int, flush bool) error {
	if flush {
		c.flushes++
	}
	return c.FS.Overwrite(name, data, offset, flush)
}

func (c *counting) SyncDir(name string) error {
	c.flushes++
	return c.FS.SyncDir(name)
}

func (c *counting) WriteFile(name string, data []byte) error {
	c.flushes++
	return c.FS.WriteFile(name, data)
}

func benchStore(b *testing.B) (*slotstore.Store, *counting) {
	b.Helper()
	disk := &counting{FS: slotstore.Dir(filepath.Join(b.TempDir(), "store"))}
	s := slotstore.New(config(disk))
	if damage, err := s.Open(); err != nil || damage != nil {
		b.Fatal(damage, err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s, disk
}

// payload16 is a configuration of 16 KiB, never the same twice.
func payload16(n int) []byte {
	return append(fmt.Appendf(nil, "%d\n", n), make([]byte, 16<<10)...)
}

// BenchmarkCommit is a start on trial, a promotion or a rejection, against the
// two ways to exchange a file of the size of a slot.
func BenchmarkCommit(b *testing.B) {
	b.Run("slot", func(b *testing.B) {
		s, disk := benchStore(b)
		disk.flushes = 0
		b.ReportAllocs()
		for b.Loop() {
			if err := put(s); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(disk.flushes)/float64(b.N), "flushes/op")
	})
	for name, syncDirectory := range map[string]bool{"rename": false, "rename+dirsync": true} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			data := make([]byte, 8192)
			flushes := 0
			b.ReportAllocs()
			for b.Loop() {
				n, err := exchange(dir, "state", data, syncDirectory)
				if err != nil {
					b.Fatal(err)
				}
				flushes += n
			}
			b.ReportMetric(float64(flushes)/float64(b.N), "flushes/op")
		})
	}
}

// exchange replaces a file by way of a temporary one, and returns how often it
// flushed.
func exchange(dir, name string, data []byte, syncDirectory bool) (flushes int, err error) {
	tmp := filepath.Join(dir, name+".tmp")
	f, err := os.Create(tmp)
	if err != nil {
		return 0, err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close(), os.Rename(tmp, filepath.Join(dir, name))); err != nil || !syncDirectory {
		return 1, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return 1, err
	}
	return 2, errors.Join(d.Sync(), d.Close())
}

// BenchmarkStage takes a new payload, against the older ways: a directory for
// the payload and a file for the assignment, each by way of a rename.
func BenchmarkStage(b *testing.B) {
	b.Run("store", func(b *testing.B) {
		s, disk := benchStore(b)
		disk.flushes = 0
		n := 0
		b.ReportAllocs()
		for b.Loop() {
			n++
			if err := errors.Join(put(s, string(payload16(n))), s.Prune()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(disk.flushes)/float64(b.N), "flushes/op")
	})
	for name, syncDirectory := range map[string]bool{"rename": false, "rename+dirsync": true} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			n, flushes := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				sub := filepath.Join(dir, fmt.Sprint(n))
				if err := os.Mkdir(sub, 0o700); err != nil {
					b.Fatal(err)
				}
				for _, file := range []struct {
					dir, name string
					data      []byte
				}{{sub, "config", payload16(n)}, {dir, "assigned", []byte(sub)}} {
					m, err := exchange(file.dir, file.name, file.data, syncDirectory)
					if err != nil {
						b.Fatal(err)
					}
					flushes += m
				}
				if err := os.RemoveAll(filepath.Join(dir, fmt.Sprint(n-2))); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(flushes)/float64(b.N), "flushes/op")
		})
	}
}
