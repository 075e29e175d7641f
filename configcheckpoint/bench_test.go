// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
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

// payload16 is a configuration of 16 KiB, different for each n.
func payload16(n int) []byte {
	return append(fmt.Appendf(nil, "%d\n", n), make([]byte, 16<<10)...)
}

// BenchmarkSteadyBoot is the start of an agent whose configuration is proven.
func BenchmarkSteadyBoot(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "store")
	disk := &counting{FS: slotstore.Dir(dir)}
	s := storeOn(disk)
	if _, err := s.Open(); err != nil {
		b.Fatal(err)
	}
	data := payload16(1)
	r, ref := rollout.Empty(), rollout.Ref{Digest: rollout.Digest(DigestOf(data)), Name: "bench", Size: len(data)}
	r.Gen, r.Assigned, r.LKG = 1, &ref, &ref
	text, err := r.Encode()
	if err := errors.Join(err, s.Save(DigestOf(data), data), s.Commit(text), s.Close()); err != nil {
		b.Fatal(err)
	}
	disk.flushes = 0
	b.ReportAllocs()
	for b.Loop() {
		c, err := New(Config[string]{Dir: dir, Codec: testCodec(), Source: make(feed)})
		if err != nil {
			b.Fatal(err)
		}
		disk.FS = slotstore.Dir(dir)
		c.store = storeOn(disk)
		if a, err := c.Boot(context.Background()); err != nil || a.Role != RoleAssigned || a.Trial {
			b.Fatal(a.Role, err)
		}
		if err := c.Close(nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(disk.flushes)/float64(b.N), "flushes/op")
}
