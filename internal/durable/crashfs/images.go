// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package crashfs

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// An Image is one state of the disk that a power cut could leave.
type Image struct {
	// What describes the image.
	What  string
	files map[string][]byte // nil data: a directory
}

// Boot returns the disk after the machine was booted on an image.
func (m *FS) Boot(i Image) *FS {
	fresh := New()
	fresh.Off = m.Off
	for name, data := range i.files {
		node := &inode{dir: data == nil, data: data, durable: data}
		fresh.names[name], fresh.durable[name] = node, node
	}
	return fresh
}

// PowerCut returns every image that a power cut now could leave. In the weak
// model any of the changes of names that are not flushed may have reached the
// disk; in the ordered one, as with a journal, the first few of them. The weak
// images include the ordered ones.
func (m *FS) PowerCut(weak bool) []Image {
	m.mu.Lock()
	defer m.mu.Unlock()
	var images []Image
	seen := map[string]bool{}
	for _, kept := range m.keptChanges(weak) {
		names := maps.Clone(m.durable)
		for i, c := range m.pending {
			if kept&(1<<i) != 0 {
				c.apply(names)
			}
		}
		for _, files := range fileImages(reachable(names)) {
			what := fmt.Sprintf("names %b of %d, %s", kept, len(m.pending), describe(files))
			if !seen[what] {
				seen[what] = true
				images = append(images, Image{what, files})
			}
		}
	}
	return images
}

// keptChanges returns sets of pending changes as bits.
func (m *FS) keptChanges(weak bool) []int {
	var sets []int
	if weak {
		for set := range 1 << len(m.pending) {
			sets = append(sets, set)
		}
		return sets
	}
	for n := range len(m.pending) + 1 {
		sets = append(sets, 1<<n-1)
	}
	return sets
}

// reachable drops the names in a directory that does not exist.
func reachable(names map[string]*inode) map[string]*inode {
	kept := map[string]*inode{}
	for name, node := range names {
		reached := names["."] != nil
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			reached = reached && names[dir] != nil
		}
		if reached {
			kept[name] = node
		}
	}
	return kept
}

// fileImages returns the contents that the files may have: for each dirty file
// in turn everything that can be left of it, with the other files old and new.
func fileImages(names map[string]*inode) []map[string][]byte {
	settled := func(dirty func(*inode) []byte) map[string][]byte {
		files := map[string][]byte{}
		for name, node := range names {
			switch {
			case node.dir:
				files[name] = nil
			case node.dirty():
				files[name] = append([]byte{}, dirty(node)...)
			default:
				files[name] = append([]byte{}, node.data...)
			}
		}
		return files
	}
	older := settled(func(n *inode) []byte { return n.durable })
	newer := settled(func(n *inode) []byte { return n.data })
	images := []map[string][]byte{older, newer}
	for name, node := range names {
		if !node.dirty() {
			continue
		}
		for _, torn := range tornFiles(node) {
			files := maps.Clone(newer)
			files[name] = torn
			images = append(images, files)
		}
	}
	return images
}

// tornFiles returns the contents that a power cut can leave of a dirty file.
func tornFiles(node *inode) [][]byte {
	part := func(b []byte) []byte { return b[min(node.from, len(b)):min(node.to, len(b))] }
	images := tornImages(part(node.durable), part(node.data))
	before := node.durable[:min(node.from, len(node.durable))]
	for i, torn := range images {
		whole := append(bytes.Clone(before), torn...)
		if len(whole) < len(node.durable) && (node.from > 0 || node.to < len(node.durable)) {
			whole = append(whole, node.durable[len(whole):]...) // what a write leaves alone stays
		}
		images[i] = whole
	}
	return images
}

// tornImages returns the contents that a power cut can leave of bytes between two contents.
func tornImages(before, after []byte) [][]byte {
	longer := func(b []byte) []byte {
		return append(bytes.Clone(b), make([]byte, max(len(before), len(after))-len(b))...)
	}
	o, n := longer(before), longer(after)
	images := [][]byte{{}, make([]byte, len(n))}
	cuts := []int{1, 90, 300, 512, 4096}
	if len(n) <= 1024 {
		cuts = []int{len(n) / 2} // written by one page, and read as a whole
	}
	for _, cut := range cuts {
		if cut == 0 || cut >= len(n) {
			continue
		}
		images = append(images,
			append([]byte{}, n[:cut]...),                                      // short
			append(append([]byte{}, n[:cut]...), make([]byte, len(n)-cut)...), // zero tail
			append(append([]byte{}, n[:cut]...), o[cut:]...),
			append(append([]byte{}, o[:cut]...), n[cut:]...),
		)
	}
	return images
}

// Killed returns the disks that the next process may find when this one is
// killed now. The kernel lives on, with everything that was written; how much of
// it was flushed does not change. A write that flushes in the same call is
// completed by the kernel, or cut short at a page and flushed that far.
func (m *FS) Killed() []*FS {
	if m.flushing == nil || m.Off.OneCall {
		return []*FS{m.clone(nil)}
	}
	torn := append(bytes.Clone(m.flushing.data[:min(4096, len(m.flushing.data))]), m.overwrote[min(4096, len(m.overwrote)):]...)
	return []*FS{m.clone(m.flushing.data), m.clone(torn)}
}

// Clone returns a copy of the disk, for the next process.
func (m *FS) Clone() *FS { return m.clone(nil) }

// clone copies the disk; the file that is being flushed then holds flushed.
func (m *FS) clone(flushed []byte) *FS {
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := New()
	fresh.Off = m.Off
	copies := map[*inode]*inode{nil: nil}
	clone := func(node *inode) *inode {
		if copies[node] == nil && node != nil {
			c := *node
			if node == m.flushing && flushed != nil {
				c.data, c.durable = flushed, flushed
			}
			copies[node] = &c
		}
		return copies[node]
	}
	for name, node := range m.names {
		fresh.names[name] = clone(node)
	}
	for name, node := range m.durable {
		fresh.durable[name] = clone(node)
	}
	for _, c := range m.pending {
		c.node, c.foreign = clone(c.node), true
		fresh.pending = append(fresh.pending, c)
	}
	return fresh
}

// describe sums up the files of an image.
func describe(files map[string][]byte) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		parts = append(parts, fmt.Sprintf("%s %d %.4x", name, len(files[name]), sha256.Sum256(files[name])))
	}
	return strings.Join(parts, ", ")
}
