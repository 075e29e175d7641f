// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package crashfs is a directory in memory, for tests, that returns the images a
// power cut could leave of it.
//
// The view of a program (names, data) and the content of stable storage differ until
// a flush: the flush of a file for its data, that of a directory for its names.
// Every change is a step. A test can let the n-th step panic with [Crashed], or
// fail, and then ask for every image that this moment could leave behind.
//
// A test that finds no violation shows something only if the harness has reach: it
// must also find the violation after one rule of the store is switched off. See
// [Mutation].
package crashfs

import (
	"bytes"
	"io/fs"
	"path"
	"slices"
	"sync"

	"github.com/kubewright/kubewright/internal/durable"
)

// FS is a file system with one directory. Its exported fields may be set while no
// store uses it; its methods may be called at any time.
type FS struct {
	// CrashAt is the step to crash before; 0 means never.
	CrashAt int
	// Fail has the errors of steps that fail.
	Fail map[int]error
	// Off is what does not work.
	Off Mutation
	// Calls counts the steps by kind.
	Calls map[string]int

	mu sync.Mutex // guards all that follows

	names   map[string]*inode // the view of the program
	durable map[string]*inode // the content of stable storage
	pending []nameChange      // changes of names not flushed, oldest first

	steps      int
	broken     error            // the error of every step, or nil
	unreadable map[string]error // the errors of files that can't be read
	lossy      map[string]bool  // files whose content is lost when they get their name
	flushing   *inode           // the file that the next step flushes
	overwrote  []byte           // the data of flushing before
}

// A Mutation switches off something that stores rely on, to show that a test
// notices it.
type Mutation struct {
	FileFlush      bool // WriteFile flushes
	OverwriteFlush bool // Overwrite flushes
	OneCall        bool // the write of Overwrite and its flush are one system call
	Errors         bool // a change that failed returns its error
}

// Crashed is the panic value of a crash.
type Crashed struct{}

// inode is a file or a directory.
type inode struct {
	dir     bool
	data    []byte // the program reads this
	durable []byte // as of the last flush
	// from and to are the bytes that were written since the last flush. A power cut
	// spoils no others. They have no meaning while data is durable.
	from, to int
}

func (i *inode) dirty() bool { return !i.dir && !bytes.Equal(i.data, i.durable) }

// nameChange is one change of names that is not durable yet.
type nameChange struct {
	dir      string // whose flush makes it durable
	from, to string // from "": created; to "": removed
	node     *inode
	foreign  bool // made by a process before this one
}

// New returns an empty disk.
func New() *FS {
	return &FS{
		names:      map[string]*inode{},
		durable:    map[string]*inode{},
		Fail:       map[int]error{},
		Calls:      map[string]int{},
		unreadable: map[string]error{},
		lossy:      map[string]bool{},
	}
}

var _ durable.FS = (*FS)(nil)

// step counts a change, and crashes or fails there if the test says so. It
// returns whether to make the change. m.mu must be held.
func (m *FS) step(kind string) (bool, error) {
	m.steps++
	if m.steps == m.CrashAt {
		panic(Crashed{})
	}
	err := m.broken
	if err == nil {
		err = m.Fail[m.steps]
	}
	if err != nil {
		if m.Off.Errors {
			return false, nil
		}
		return false, err
	}
	m.Calls[kind]++
	return true, nil
}

// Changes returns the number of steps.
func (m *FS) Changes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.steps
}

// ResetCounts sets the number of steps and Calls to zero.
func (m *FS) ResetCounts() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps = 0
	clear(m.Calls)
}

// Break lets every step fail with err from now on; nil ends that.
func (m *FS) Break(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = err
}

// SetUnreadable lets reading name fail with err from now on; nil ends that.
func (m *FS) SetUnreadable(name string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unreadable[name] = err
}

// SetLossy lets a file lose its content whenever it gets its name, or ends that.
func (m *FS) SetLossy(name string, lossy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lossy[name] = lossy
}

// Count returns the number of steps of a kind. Unlike Calls it may be used while a
// store uses the disk.
func (m *FS) Count(kind string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Calls[kind]
}

// Put places a file on the disk, durably, as an older program or a fault of the
// disk could have. Nil data is a directory.
func (m *FS) Put(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.names[name]
	if node == nil {
		node = &inode{dir: data == nil}
		m.names[name], m.durable[name] = node, node
	}
	node.data, node.durable = data, data
}

// Delete removes a name from the disk, durably.
func (m *FS) Delete(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.names, name)
	delete(m.durable, name)
}

// Data returns the content of a file as the program sees it, and whether the
// file exists.
func (m *FS) Data(name string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.names[name]
	if node == nil {
		return nil, false
	}
	return node.data, true
}

// Files returns the names of all files and directories.
func (m *FS) Files() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Uncertain reports whether this process changed names in a directory that are not
// flushed. Changes by processes before it don't count.
func (m *FS) Uncertain(dir string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.pending, func(c nameChange) bool { return c.dir == dir && !c.foreign })
}

func missing(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// parent returns the directory whose flush makes a name durable.
func parent(name string) string {
	if name == "." {
		return ".."
	}
	return path.Dir(name)
}

// change alters the visible names and records that the change is not durable.
func (m *FS) change(from, to string, node *inode) {
	dir := parent(from)
	if to != "" {
		dir = parent(to)
	}
	c := nameChange{dir: dir, from: from, to: to, node: node}
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

// Open implements durable.FS.
func (m *FS) Open() error {
	if _, exists := m.Data("."); exists {
		return nil
	}
	return m.Mkdir(".")
}

// Mkdir implements durable.FS.
func (m *FS) Mkdir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
	}
	do, err := m.step("mkdir")
	if do {
		m.change("", name, &inode{dir: true})
	}
	return err
}

// ReadFile implements durable.FS.
func (m *FS) ReadFile(name string, limit int) ([]byte, error) {
	return m.AppendFile([]byte{}, name, limit)
}

// AppendFile implements durable.FS.
func (m *FS) AppendFile(buf []byte, name string, limit int) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.unreadable[name]; err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	node := m.names[name]
	if node == nil || node.dir {
		return nil, missing("open", name)
	}
	return append(buf, node.data[:min(limit, len(node.data))]...), nil
}

// ReadDir implements durable.FS.
func (m *FS) ReadDir(name string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] == nil {
		return nil, missing("open", name)
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

// WriteFile implements durable.FS.
func (m *FS) WriteFile(name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[path.Dir(name)] == nil {
		return missing("open", name)
	}
	do, err := m.step("create")
	if err != nil {
		return err
	}
	node := m.names[name]
	if do {
		if node == nil {
			node = &inode{}
			m.change("", name, node)
		}
		node.data = nil
		node.from, node.to = 0, max(len(node.durable), len(data))
	}
	do, err = m.step("write")
	if err != nil {
		return err
	}
	if do && node != nil {
		node.data = bytes.Clone(data)
	}
	if m.Off.FileFlush {
		return nil
	}
	do, err = m.step("flush")
	if do && node != nil {
		node.durable = node.data
	}
	return err
}

// Overwrite implements durable.FS.
func (m *FS) Overwrite(name string, data []byte, offset int, flush bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.names[name]
	if node == nil {
		do, err := m.step("create")
		if err != nil {
			return err
		}
		node = &inode{}
		if do {
			m.change("", name, node)
		}
	}
	do, err := m.step("write")
	if err != nil {
		return err
	}
	m.overwrote = node.data
	if do {
		if !node.dirty() {
			node.from, node.to = offset, offset+len(data)
		}
		node.from, node.to = min(node.from, offset), max(node.to, offset+len(data))
		grown := append(bytes.Clone(node.data), make([]byte, max(0, offset+len(data)-len(node.data)))...)
		copy(grown[offset:], data)
		node.data = grown
	}
	if !flush || m.Off.OverwriteFlush {
		return nil
	}
	m.flushing = node
	do, err = m.step("flush")
	m.flushing = nil
	if do {
		node.durable = node.data
	}
	return err
}

// Rename implements durable.FS.
func (m *FS) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.names[from]
	if node == nil {
		return missing("rename", from)
	}
	do, err := m.step("rename")
	if do {
		m.change(from, to, node)
		if m.lossy[to] {
			node.data, node.durable = []byte("lost"), []byte("lost")
		}
	}
	return err
}

// Remove implements durable.FS.
func (m *FS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] == nil {
		return missing("remove", name)
	}
	do, err := m.step("remove")
	if do {
		m.change(name, "", nil)
	}
	return err
}

// SyncDir implements durable.FS.
func (m *FS) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name != ".." && m.names[name] == nil {
		return missing("open", name)
	}
	do, err := m.step("flush")
	if do {
		inDir := func(c nameChange) bool { return c.dir == name }
		for _, c := range m.pending {
			if inDir(c) {
				c.apply(m.durable)
			}
		}
		m.pending = slices.DeleteFunc(m.pending, inDir)
	}
	return err
}

// Close implements durable.FS.
func (m *FS) Close() error { return nil }
