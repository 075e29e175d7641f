// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The benchmarks run on the disk of the temporary directory (TMPDIR), which
// should be a real one: what they measure is how often it is flushed. Each one
// reports that number too.

// counting counts the flushes of the disk that a store asks for.
type counting struct {
	fsys
	flushes int
}

func (c *counting) overwrite(name string, data []byte) error {
	c.flushes++
	return c.fsys.overwrite(name, data)
}

func (c *counting) syncDir(name string) error {
	c.flushes++
	return c.fsys.syncDir(name)
}

func (c *counting) createFile(name string) (file, error) {
	f, err := c.fsys.createFile(name)
	return countingFile{f, c}, err
}

type countingFile struct {
	file
	c *counting
}

func (f countingFile) Sync() error {
	f.c.flushes++
	return f.file.Sync()
}

func benchStore(b *testing.B) (*store, *counting) {
	b.Helper()
	disk := &counting{fsys: &osFS{path: filepath.Join(b.TempDir(), "store")}}
	s := &store{fs: disk, build: "bench"}
	if damage, err := s.open(); err != nil || damage != nil {
		b.Fatal(damage, err)
	}
	b.Cleanup(func() {
		if err := s.close(); err != nil {
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
		r := openAttempt(stage(state("A", "A", ""), *ref("B"), "1"), "1", "boot")
		disk.flushes = 0
		b.ReportAllocs()
		for b.Loop() {
			if err := s.commit(r); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(disk.flushes)/float64(b.N), "flushes/op")
	})
	for name, syncDirectory := range map[string]bool{"rename": false, "rename+dirsync": true} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			data := make([]byte, slotSize)
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
	return 2, syncDirFile(d, err)
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
			data := payload16(n)
			r := Ref{Digest: DigestOf(data), Name: "bench", Size: len(data)}
			if err := errors.Join(s.save(r.Digest, data), s.commit(stage(s.rec, r, "1")), s.prune()); err != nil {
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

// BenchmarkSteadyBoot is the start of an agent whose configuration is proven.
func BenchmarkSteadyBoot(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "store")
	disk := &counting{fsys: &osFS{path: dir}}
	s := &store{fs: disk}
	if _, err := s.open(); err != nil {
		b.Fatal(err)
	}
	data := payload16(1)
	r, _ := promote(stage(emptyRecord(), Ref{Digest: DigestOf(data), Name: "bench", Size: len(data)}, ""), DigestOf(data))
	if err := errors.Join(s.save(DigestOf(data), data), s.commit(r), s.close()); err != nil {
		b.Fatal(err)
	}
	disk.flushes = 0
	b.ReportAllocs()
	for b.Loop() {
		c, err := New(Config[string]{Dir: dir, Codec: testCodec(), Source: make(feed)})
		if err != nil {
			b.Fatal(err)
		}
		disk.fsys = &osFS{path: dir}
		c.store.fs = disk
		if a, err := c.Boot(context.Background()); err != nil || a.Role != RoleAssigned || a.Trial {
			b.Fatal(a.Role, err)
		}
		if err := c.Close(nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(disk.flushes)/float64(b.N), "flushes/op")
}
