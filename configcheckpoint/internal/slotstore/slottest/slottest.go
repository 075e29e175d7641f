// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package slottest has a disk for tests of stores that can crash, and that knows
// which record must not be lost.
package slottest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/internal/durable/crashfs"
)

// Disk is a crashfs.FS that records what a store acknowledged.
type Disk struct {
	*crashfs.FS
	// Opening is set by the test while a store opens.
	Opening bool

	// Acked is the newest record whose write returned, and Attempted are those
	// whose write was started since.
	Acked     []byte
	Attempted [][]byte
	// Crashed means that no store was opened since the last crash.
	Crashed bool

	off Rule // the one that is switched off
}

// A Rule is one that the package comment of slotstore says, or one that it relies
// on.
type Rule string

// The rules that can be switched off.
const (
	PayloadFlush    Rule = "payload first: the bytes are flushed"
	PayloadDirFlush Rule = "payload first: the name is flushed"
	TwoSlots        Rule = "spare slot: commits don't overwrite the only slot"
	SlotDirFlush    Rule = "slots first: the names are flushed"
	TrustNames      Rule = "slots first: names that another process made are flushed again"
	Repair          Rule = "repair at open: torn slots don't stay"
	Errors          Rule = "report every error"
	SlotFlush       Rule = "commits are flushed"
	OneCall         Rule = "the write of a slot and its flush are one call"
	Checksum        Rule = "slots have a checksum"
)

// SwitchOff switches off one rule.
func (d *Disk) SwitchOff(r Rule) {
	d.off = r
	d.FS.Off = crashfs.Mutation{FileFlush: r == PayloadFlush, OverwriteFlush: r == SlotFlush, OneCall: r == OneCall, Errors: r == Errors}
}

// New returns an empty disk.
func New() *Disk { return &Disk{FS: crashfs.New()} }

// successor returns the disk of the next process, on which the same was
// acknowledged.
func (d *Disk) successor(fs *crashfs.FS) *Disk {
	return &Disk{FS: fs, off: d.off, Acked: d.Acked, Attempted: slices.Clone(d.Attempted), Crashed: true}
}

// Boot returns the disk after the machine was booted on an image.
func (d *Disk) Boot(i crashfs.Image) *Disk { return d.successor(d.FS.Boot(i)) }

// Clone returns a copy of the disk, for the next process.
func (d *Disk) Clone() *Disk { return d.successor(d.FS.Clone()) }

// Killed returns the disks that the next process may find when this one is killed
// now.
func (d *Disk) Killed() []*Disk {
	var disks []*Disk
	for _, fs := range d.FS.Killed() {
		disks = append(disks, d.successor(fs))
	}
	return disks
}

// AfterCrash finds out which of the possible records the crash has left. From
// now on that one must not be lost.
func (d *Disk) AfterCrash(cfg slotstore.Config) {
	d.Crashed = false
	cfg.FS = d.Clone()
	s := slotstore.New(cfg)
	if _, err := s.Open(); err == nil && (d.Acked == nil || Generation(s.Record()) >= Generation(d.Acked)) {
		d.Acked = s.Record()
	}
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

func (d *Disk) slot(name string) string {
	if d.off == TwoSlots && name == slotstore.SlotB {
		return slotstore.SlotA
	}
	return name
}

// ReadFile implements durable.FS.
func (d *Disk) ReadFile(name string, limit int) ([]byte, error) {
	data, err := d.FS.ReadFile(d.slot(name), limit)
	if d.off == Checksum {
		data = forgeChecksum(data)
	}
	return data, err
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

// Overwrite implements durable.FS.
func (d *Disk) Overwrite(name string, data []byte, offset int, flush bool) error {
	if name != slotstore.SlotA && name != slotstore.SlotB {
		return d.FS.Overwrite(name, data, offset, flush)
	}
	record, err := slotstore.DecodeSlot(data)
	if err != nil {
		return fmt.Errorf("the data written to a slot can't be read: %w", err)
	}
	if d.Opening && d.off == Repair && Generation(record) > 0 {
		return nil
	}
	d.Attempted = append(d.Attempted, record)
	if err := d.FS.Overwrite(d.slot(name), data, offset, flush); err != nil {
		return err
	}
	d.Acked = record
	if !d.Opening {
		d.Attempted = nil
	}
	return nil
}

// SyncDir implements durable.FS.
func (d *Disk) SyncDir(name string) error {
	isPayload := name == slotstore.PayloadDir
	switch {
	case isPayload && d.off == PayloadDirFlush,
		!isPayload && d.off == SlotDirFlush,
		!isPayload && d.off == TrustNames && !d.Uncertain(name):
		return nil
	}
	return d.FS.SyncDir(name)
}
