// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package crashfs is a file system in memory, for tests, that returns the images a
// power cut could leave of it.
//
// The view of a program (names, data) and the content of stable storage differ until
// a flush: the flush of a file for its data, that of a directory for its names.
// Every change is a step. A test can let the n-th step panic with [Crashed], or
// fail, and then ask for every image that this moment could leave behind.
package crashfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
)

// FS is a file system with one directory. Its fields may be set while no store
// uses it; the methods Changes and Break may be called at any time.
type FS struct {
	// CrashAt is the step to crash before; 0 means never.
	CrashAt int
	// Fail has the errors of steps that fail.
	Fail map[int]error
	// Unreadable has the errors of files that can't be read, by name. Set it with
	// SetUnreadable while a store uses the disk.
	Unreadable map[string]error
	// Off is the rule that is switched off.
	Off Mutation
	// Opening is set by the test while a store opens.
	Opening bool
	// Calls counts the steps by kind.
	Calls map[string]int

	// Acked is the newest record whose write returned, and Attempted are those
	// whose write was started since.
	Acked     []byte
	Attempted [][]byte
	// Crashed means that no store was opened since the last crash.
	Crashed bool

	names   map[string]*inode // the view of the program
	durable map[string]*inode // the content of stable storage
	pending []nameChange      // changes of names not flushed, oldest first

	lossy map[string]bool // files whose content is lost when it is written

	mu        sync.Mutex
	steps     int    // mu guards it
	broken    error  // the error of every step, or nil; mu guards it
	flushing  *inode // the file that the next step flushes
	overwrote []byte // the data of flushing before
}

// A Mutation switches off one rule of the store, or something that it relies on.
type Mutation struct {
	PayloadFlush    bool // payload first: the bytes
	PayloadDirFlush bool // payload first: the name
	TwoSlots        bool // spare slot
	SlotDirFlush    bool // slots first
	TrustNames      bool // slots first: names that another process made
	Repair          bool // repair at open
	Errors          bool // report every error
	SlotFlush       bool // the flush of a commit
	Checksum        bool // the checksum of the slots
	OneCall         bool // the write of a slot and its flush as one system call
}

// Crashed is the panic value of a crash.
type Crashed struct{}

// inode is a file or a directory.
type inode struct {
	dir     bool
	data    []byte // the program reads this
	durable []byte // as of the last flush
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
		Unreadable: map[string]error{},
		lossy:      map[string]bool{},
	}
}

var _ slotstore.FS = (*FS)(nil)

// step counts a change, and crashes or fails there if the test says so. It
// returns whether to make the change.
func (m *FS) step(kind string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	if err == nil {
		delete(m.Unreadable, name)
		return
	}
	m.Unreadable[name] = err
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
	node := m.names[name]
	if node == nil {
		node = &inode{dir: data == nil}
		m.names[name], m.durable[name] = node, node
	}
	node.data, node.durable = data, data
}

// Delete removes a name from the disk, durably.
func (m *FS) Delete(name string) {
	delete(m.names, name)
	delete(m.durable, name)
}

// Data returns the content of a file as the program sees it, and whether the
// file exists.
func (m *FS) Data(name string) ([]byte, bool) {
	node := m.names[name]
	if node == nil {
		return nil, false
	}
	return node.data, true
}

// Files returns the names of all files and directories.
func (m *FS) Files() []string {
	var names []string
	for name := range m.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func missing(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// change alters the visible names and records that the change is not durable.
func (m *FS) change(dir, from, to string, node *inode) {
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

// Open implements slotstore.FS.
func (m *FS) Open() error {
	if m.names["."] == nil {
		return m.Mkdir(".")
	}
	return nil
}

// Mkdir implements slotstore.FS.
func (m *FS) Mkdir(name string) error {
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

func (m *FS) slot(name string) string {
	if m.Off.TwoSlots && name == slotstore.SlotB {
		return slotstore.SlotA
	}
	return name
}

// ReadFile implements slotstore.FS.
func (m *FS) ReadFile(name string, limit int) ([]byte, error) {
	m.mu.Lock()
	err := m.Unreadable[name]
	m.mu.Unlock()
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	name = m.slot(name)
	node := m.names[name]
	if node == nil || node.dir {
		return nil, missing("open", name)
	}
	data := node.data[:min(limit, len(node.data))]
	if m.Off.Checksum {
		data = forgeChecksum(data)
	}
	return bytes.Clone(data), nil
}

// forgeChecksum corrects the checksum of a slot, whatever the slot holds.
func forgeChecksum(slot []byte) []byte {
	header, rest, ok := bytes.Cut(slot, []byte("\n"))
	var length int
	var sum string
	if !ok {
		return slot
	}
	if n, _ := fmt.Sscanf(string(header), "cc1 %d %s", &length, &sum); n != 2 || length > len(rest) {
		return slot
	}
	// Damage to the padding passes as well.
	forged := fmt.Appendf(nil, "cc1 %d %x\n%s\n", length, sha256.Sum256(rest[:length]), rest[:length])
	return append(forged, bytes.Repeat([]byte{' '}, max(0, len(slot)-len(forged)))...)
}

// ReadDir implements slotstore.FS.
func (m *FS) ReadDir(name string) ([]string, error) {
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

// WriteFile implements slotstore.FS.
func (m *FS) WriteFile(name string, data []byte) error {
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
			m.change(path.Dir(name), "", name, node)
		}
		node.data = nil
	}
	do, err = m.step("write")
	if err != nil {
		return err
	}
	if do && node != nil {
		node.data = bytes.Clone(data)
	}
	if m.Off.PayloadFlush {
		return nil
	}
	do, err = m.step("flush")
	if do && node != nil {
		node.durable = node.data
	}
	return err
}

// Overwrite implements slotstore.FS.
func (m *FS) Overwrite(name string, data []byte, flush bool) error {
	var record []byte
	isSlot := name == slotstore.SlotA || name == slotstore.SlotB
	if isSlot {
		var err error
		if record, err = slotstore.DecodeSlot(data); err != nil {
			return fmt.Errorf("the data written to a slot can't be read: %w", err)
		}
	}
	name = m.slot(name)
	if m.Opening && m.Off.Repair && isSlot && Generation(record) > 0 {
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
	if isSlot {
		m.Attempted = append(m.Attempted, record)
	}
	m.overwrote = node.data
	if do {
		node.data = append(bytes.Clone(data), node.data[min(len(data), len(node.data)):]...)
	}
	if flush && !m.Off.SlotFlush {
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
	if isSlot {
		m.Acked = record
		if !m.Opening {
			m.Attempted = nil
		}
	}
	return nil
}

// Generation returns the generation of a record, which the tests keep in the
// JSON field gen.
func Generation(record []byte) uint64 {
	var r struct {
		Gen uint64 `json:"gen"`
	}
	if err := json.Unmarshal(record, &r); err != nil {
		return 0
	}
	return r.Gen
}

// Rename implements slotstore.FS.
func (m *FS) Rename(from, to string) error {
	node := m.names[from]
	if node == nil {
		return missing("rename", from)
	}
	do, err := m.step("rename")
	if do {
		m.change(path.Dir(to), from, to, node)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lossy[to] {
			node.data, node.durable = []byte("lost"), []byte("lost")
		}
	}
	return err
}

// Remove implements slotstore.FS.
func (m *FS) Remove(name string) error {
	if m.names[name] == nil {
		return missing("remove", name)
	}
	do, err := m.step("remove")
	if do {
		m.change(path.Dir(name), name, "", nil)
	}
	return err
}

// SyncDir implements slotstore.FS.
func (m *FS) SyncDir(name string) error {
	inDir := func(c nameChange) bool { return c.dir == name }
	switch {
	case name == slotstore.PayloadDir && m.Off.PayloadDirFlush, name != slotstore.PayloadDir && m.Off.SlotDirFlush:
		return nil
	case m.Off.TrustNames && name != slotstore.PayloadDir &&
		!slices.ContainsFunc(m.pending, func(c nameChange) bool { return inDir(c) && !c.foreign }):
		return nil
	}
	if name != ".." && m.names[name] == nil {
		return missing("open", name)
	}
	do, err := m.step("flush")
	if do {
		for _, c := range m.pending {
			if inDir(c) {
				c.apply(m.durable)
			}
		}
		m.pending = slices.DeleteFunc(m.pending, inDir)
	}
	return err
}

// Close implements slotstore.FS.
func (m *FS) Close() error { return nil }
