// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"
)

// crashFS is a file system in memory that knows what a power cut would leave
// of it. What a program sees (names, data) and what is on stable storage
// differ until a flush: of a file for its data, of a directory for its names.
//
// Every change is a step. A test can have the n-th step panic with crashed, or
// fail, and then ask for every image that the moment could leave behind.
type crashFS struct {
	names   map[string]*inode // what the program sees
	durable map[string]*inode // what is on stable storage
	pending []nameChange      // changes of names not flushed, oldest first

	steps     int
	crashAt   int           // panic before this step; 0: never
	fail      map[int]error // steps that fail
	mu        sync.Mutex
	broken    error          // what every step fails with, or nil; mu guards it
	flushing  *inode         // the file that the step to come would flush
	overwrote []byte         // what flushing held before
	calls     map[string]int // by kind, to be counted
	// unreadable has files whose reading fails; mu guards it
	unreadable map[string]error
	off        mutation

	acked     *record   // the newest record whose write returned
	attempted []*record // those whose write was begun since
	crashed   bool      // nobody has opened this since a crash
	opening   bool
}

// mutation switches off a rule of the store (the first seven), or takes away
// something else that it relies on.
type mutation struct {
	payloadFlush    bool // W1: the bytes
	payloadDirFlush bool // W1: the name
	twoSlots        bool // W2
	slotDirFlush    bool // W3
	repair          bool // W4
	keepOlder       bool // W5
	errors          bool // W6
	slotFlush       bool // the flush of a commit
	checksum        bool // of the slot
	oneCall         bool // the write of a slot and its flush in one system call
	settle          bool // the flush of names that another process may have made
}

// crashed is what a crash panics with.
type crashed struct{}

// inode is a file or a directory.
type inode struct {
	dir     bool
	data    []byte // what the program reads
	durable []byte // what was flushed last
}

func (i *inode) dirty() bool { return !i.dir && !bytes.Equal(i.data, i.durable) }

// nameChange is one change of names that is not yet durable.
type nameChange struct {
	dir      string // whose flush makes it durable
	from, to string // from "": made; to "": removed
	node     *inode
}

func newCrashFS() *crashFS {
	return &crashFS{
		names:      map[string]*inode{},
		durable:    map[string]*inode{},
		fail:       map[int]error{},
		calls:      map[string]int{},
		unreadable: map[string]error{},
	}
}

var _ fsys = (*crashFS)(nil)

// step counts a change, and crashes or fails there if it is to. It returns
// whether the change is to be made.
func (m *crashFS) step(kind string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
	if m.steps == m.crashAt {
		panic(crashed{})
	}
	err := m.broken
	if err == nil {
		err = m.fail[m.steps]
	}
	if err != nil {
		if m.off.errors {
			return false, nil
		}
		return false, err
	}
	m.calls[kind]++
	return true, nil
}

// changes returns how many there were. Unlike the fields it may be called while
// a process runs.
func (m *crashFS) changes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.steps
}

// breaks has every change fail from now on, or with nil none.
func (m *crashFS) breaks(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = err
}

func (m *crashFS) missing(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// change alters the visible names and remembers that it is not durable.
func (m *crashFS) change(dir, from, to string, node *inode) {
	c := nameChange{dir, from, to, node}
	c.apply(m.names)
	m.pending = append(m.pending, c)
}

func (c nameChange) apply(names map[string]*inode) {
	if c.from != "" {
		delete(names, c.from)
	}
	if c.to != "" {
		names[c.to] = c.node
	}
}

func (m *crashFS) open() error {
	if m.names["."] == nil {
		return m.mkdir(".")
	}
	return nil
}

func (m *crashFS) mkdir(name string) error {
	if m.names[name] != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
	}
	do, err := m.step("mkdir")
	if do {
		dir := path.Dir(name)
		if name == "." {
			dir = ".."
		}
		m.change(dir, "", name, &inode{dir: true})
	}
	return err
}

func (m *crashFS) slot(name string) string {
	if m.off.twoSlots && name == slotB {
		return slotA
	}
	return name
}

func (m *crashFS) readFile(name string, limit int) ([]byte, error) {
	m.mu.Lock()
	err := m.unreadable[name]
	m.mu.Unlock()
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	name = m.slot(name)
	node := m.names[name]
	if node == nil || node.dir {
		return nil, m.missing("open", name)
	}
	data := node.data[:min(limit, len(node.data))]
	if m.off.checksum {
		data = forgeChecksum(data)
	}
	return bytes.Clone(data), nil
}

// forgeChecksum makes the checksum of a slot right, whatever it holds.
func forgeChecksum(slot []byte) []byte {
	header, rest, ok := bytes.Cut(slot, []byte("\n"))
	var length int
	var sum string
	if !ok || len(slot) != slotSize {
		return slot
	}
	if n, _ := fmt.Sscanf(string(header), "cc1 %d %s", &length, &sum); n != 2 || length > len(rest) {
		return slot
	}
	// Damage to the padding passes as well.
	forged := fmt.Appendf(nil, "cc1 %d %x\n%s\n", length, sha256.Sum256(rest[:length]), rest[:length])
	return append(forged, bytes.Repeat([]byte{' '}, slotSize-len(forged))...)
}

func (m *crashFS) readDir(name string) ([]string, error) {
	if m.names[name] == nil {
		return nil, m.missing("open", name)
	}
	var names []string
	for full := range m.names {
		if full != "." && path.Dir(full) == name {
			names = append(names, path.Base(full))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (m *crashFS) createFile(name string) (file, error) {
	if m.names[path.Dir(name)] == nil {
		return nil, m.missing("open", name)
	}
	do, err := m.step("create")
	if err != nil {
		return nil, err
	}
	node := m.names[name]
	if do {
		if node == nil {
			node = &inode{}
			m.change(path.Dir(name), "", name, node)
		}
		node.data = nil
	}
	return &crashFile{m, node}, nil
}

func (m *crashFS) overwrite(name string, data []byte) error {
	r, err := decodeSlot(data)
	if err != nil {
		return fmt.Errorf("what is written to a slot can't be read: %w", err)
	}
	name = m.slot(name)
	if m.opening && m.off.repair && r.Gen > 0 {
		return nil
	}
	node := m.names[name]
	if node == nil {
		do, err := m.step("create")
		if err != nil {
			return err
		}
		node = &inode{}
		if do {
			m.change(".", "", name, node)
		}
	}
	do, err := m.step("write")
	if err != nil {
		return err
	}
	m.attempted = append(m.attempted, &r)
	m.overwrote = node.data
	if do {
		node.data = append(bytes.Clone(data), node.data[min(len(data), len(node.data)):]...)
	}
	if !m.off.slotFlush {
		m.flushing = node
		do, err = m.step("flush")
		m.flushing = nil
		if err != nil {
			return err
		}
		if do {
			node.durable = node.data
		}
	}
	m.acked = &r
	if !m.opening {
		m.attempted = nil
	}
	return nil
}

func (m *crashFS) rename(from, to string) error {
	node := m.names[from]
	if node == nil {
		return m.missing("rename", from)
	}
	do, err := m.step("rename")
	if do {
		m.change(path.Dir(to), from, to, node)
	}
	return err
}

func (m *crashFS) remove(name string) error {
	if m.names[name] == nil {
		return m.missing("remove", name)
	}
	do, err := m.step("remove")
	if do {
		m.change(path.Dir(name), name, "", nil)
	}
	return err
}

func (m *crashFS) syncDir(name string) error {
	switch {
	case name == payloadDir && m.off.payloadDirFlush, name != payloadDir && m.off.slotDirFlush:
		return nil
	}
	if name != ".." && m.names[name] == nil {
		return m.missing("open", name)
	}
	do, err := m.step("flush")
	if do {
		m.pending = slices.DeleteFunc(m.pending, func(c nameChange) bool {
			if c.dir == name {
				c.apply(m.durable)
			}
			return c.dir == name
		})
	}
	return err
}

func (m *crashFS) close() error { return nil }

// crashFile is a file being written.
type crashFile struct {
	m    *crashFS
	node *inode
}

func (f *crashFile) Write(p []byte) (int, error) {
	do, err := f.m.step("write")
	if err != nil {
		return 0, err
	}
	if do && f.node != nil {
		f.node.data = append(f.node.data, p...)
	}
	return len(p), nil
}

func (f *crashFile) Sync() error {
	if f.m.off.payloadFlush {
		return nil
	}
	do, err := f.m.step("flush")
	if do && f.node != nil {
		f.node.durable = f.node.data
	}
	return err
}

func (f *crashFile) Close() error { return nil }
