// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/resourceslice/claimstore/internal/journal"
)

const (
	// journalFile has the records.
	journalFile = "claims"
	// damagedFile has damaged lines of the journal that stand for no claim.
	damagedFile = "damaged"
	// lockFile has the locks of claims and devices. It is empty.
	lockFile = "lock"

	// maxJournal bounds what is read; a thousand claims have less than a mebibyte.
	maxJournal = 256 << 20
	// maxDamaged is the size at which damagedFile begins again.
	maxDamaged = 1 << 20
	// dropped begins damagedFile after that. It is no record, so that Sweep still refuses.
	dropped = "older lines were dropped\n"
)

// disk reads and writes the journal. Other processes may write it too: the
// directory is locked for one call at a time.
type disk struct {
	driver string

	mu  sync.Mutex
	fs  durable.FS
	log *journal.Log // as of the last call
	// buffer is for the next read: each call compares the file with log.
	buffer []byte
	// replace is set if the next record must be written with the whole file: the
	// file is not there, or what a failed write left of it is not known.
	replace bool
	// lost are damaged lines that were not reported yet; known are those that were.
	lost  [][]byte
	known map[string]bool
}

func newDisk(driver string, fs durable.FS) *disk {
	return &disk{driver: driver, fs: fs, log: journal.New(driver), known: map[string]bool{}}
}

// transact calls f with the journal as it is on the disk. No other process changes
// it in the meantime.
func (d *disk) transact(ctx context.Context, f func(*journal.Log) error) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = try(ctx, func() error {
		err := d.fs.Open()
		if errors.Is(err, durable.ErrLocked) {
			return fmt.Errorf("%w: %w", errBusy, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.fs.Close()) }()
	if err := d.read(); err != nil {
		return err
	}
	return f(d.log)
}

// read updates d.log. What can't be read is not written over.
func (d *disk) read() error {
	data, err := d.fs.AppendFile(d.buffer[:0], journalFile, maxJournal+1)
	if errors.Is(err, fs.ErrNotExist) {
		d.log, d.replace = journal.New(d.driver), true
		return nil
	}
	if err != nil {
		return err
	}
	if len(data) > maxJournal {
		return fmt.Errorf("%s has more than %d bytes", journalFile, maxJournal)
	}
	if d.log.Is(data) {
		d.buffer = data
		return nil
	}
	d.buffer = nil // the log keeps data
	log, err := journal.Parse(d.driver, data)
	if err != nil {
		return err
	}
	for _, line := range log.Lost() {
		if !d.known[string(line)] {
			d.known[string(line)] = true
			d.lost = append(d.lost, line)
		}
	}
	d.log = log
	return nil
}

// add writes a record. It is on the disk when add returns nil. Call it in transact.
func (d *disk) add(e journal.Entry) error {
	if d.replace || d.log.Wasteful() {
		return d.rewrite(&e)
	}
	data, offset, err := d.log.Append(e)
	if err != nil {
		return err
	}
	if err := d.fs.Overwrite(journalFile, data, offset, true); err != nil {
		d.replace = true
		return err
	}
	d.log.Wrote(data, offset)
	return nil
}

// mark gives the record of a claim a mark, which needs no space. It is on the disk
// when mark returns nil, except for Undoing: what a power cut can take away has no
// meaning on the next boot. Call it in transact.
func (d *disk) mark(uid string, mark byte) error {
	data, offset, ok := d.log.Mark(uid, mark)
	if !ok {
		return nil
	}
	err := d.fs.Overwrite(journalFile, data, offset, mark == journal.Ended)
	d.log.Wrote(data, offset)
	if err == nil {
		return nil
	}
	// The byte may be unreadable now; a new file has another place for it.
	if again := d.rewrite(nil); again != nil {
		return errors.Join(err, again)
	}
	return nil
}

// rewrite replaces the journal by one without superseded lines, and with e.
func (d *disk) rewrite(e *journal.Entry) error {
	d.replace = true
	if lost := d.log.Lost(); len(lost) > 0 {
		if err := d.keep(lost); err != nil {
			return err
		}
	}
	log, err := journal.Parse(d.driver, d.log.Rewritten())
	if err != nil {
		return err
	}
	if e != nil {
		data, offset, err := log.Append(*e)
		if err != nil {
			return err
		}
		log.Wrote(data, offset)
	}
	if err := durable.Replace(d.fs, journalFile, log.Bytes()); err != nil {
		return err
	}
	if err := d.fs.SyncDir(".."); err != nil { // the directory may be new
		return err
	}
	d.log, d.replace = log, false
	return nil
}

// keep adds damaged lines to damagedFile, for a person to look at.
func (d *disk) keep(lost [][]byte) error {
	before, err := d.fs.ReadFile(damagedFile, maxDamaged)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(before) == maxDamaged {
		before = []byte(dropped)
	}
	return durable.Replace(d.fs, damagedFile, append(before, append(bytes.Join(lost, []byte("\n")), '\n')...))
}

// aside returns the lines of damagedFile. Call it in transact.
func (d *disk) aside() ([][]byte, error) {
	data, err := d.fs.ReadFile(damagedFile, maxDamaged+1)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lines := bytes.Split(data, []byte("\n"))
	return slices.DeleteFunc(lines, func(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 }), nil
}

// takeLost returns the damaged lines that were found since the last call.
func (d *disk) takeLost() [][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	lost := d.lost
	d.lost = nil
	return lost
}
