// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
)

// The rules that make a store survive a crash at any moment. The comments of
// the functions below say where each is kept; TestEveryRuleIsNeeded switches
// them off one at a time and shows what is then lost.
//
//	W1  A payload is durable, bytes and name, before a record mentions it.
//	W2  A commit never writes the slot that holds the newest durable record.
//	W3  Both slots exist durably before the first commit is reported.
//	W4  Opening repairs a slot that is torn or missing.
//	W5  A payload is removed only when neither slot mentions it.
//	W6  Every error of a write, a flush or a close is an error.
//	W7  Nothing is decided by a file's time or the wall clock.

var (
	// errCorrupt: a payload can't be used.
	errCorrupt = errors.New("the stored payload is damaged or missing")
	// errTooNew: the record is in a format this code must not touch.
	errTooNew = errors.New("the store was written by a newer program")
)

// slotNames are the files of the two slots, by index.
func slotNames() [2]string { return [2]string{slotA, slotB} }

// A store keeps one record, in two slots of which the newest valid one counts,
// and the payloads it mentions, each in a file named by its digest. It is not
// safe for concurrent use.
type store struct {
	fs    fsys
	build string

	opened bool
	rec    record     // the newest committed record
	slots  [2]*record // what each slot holds; nil: nothing usable
	cur    int        // the slot of rec, or -1
	// settled: the entries of both slots and of the payload directory are
	// known to be durable.
	settled bool
	frozen  error // why nothing may be written, or nil
}

// open reads the store, repairs what a crash left, and locks out other
// processes until close. An error means that the store could not be opened at
// all; it may be tried again. A store that opened may still be damaged: damage
// then says what was lost or could not be repaired, and the store goes on with
// what there is.
func (s *store) open() (damage, err error) {
	s.rec, s.slots, s.cur, s.settled, s.frozen = emptyRecord(), [2]*record{}, -1, false, nil
	if err := s.fs.open(); err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	present, causes, err := s.readSlots()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the store: %w", err), s.fs.close())
	}
	s.opened = true
	switch {
	case s.frozen != nil:
		return nil, nil
	case s.cur >= 0:
		// Two slots of one generation have been made by create or by repair,
		// and the process that did may have died before it flushed the
		// directory.
		s.settled = s.slots[0] != nil && s.slots[1] != nil && s.slots[0].Gen != s.slots[1].Gen
		damage = s.repair()
	case present && s.heldPayloads():
		damage = s.setAside(causes)
	default:
		damage = s.create()
	}
	s.removeLeftovers()
	return damage, nil
}

// readSlots loads both slots and takes the newest. It returns whether there is
// a slot at all, and what is wrong with those that can't be used; and an error
// where one can't be read for a reason that has nothing to do with it: that is
// no damage to be repaired, which would overwrite what may be the newest record.
func (s *store) readSlots() (present bool, causes []error, err error) {
	for i, name := range slotNames() {
		// A file that has grown is read as far as a slot goes: it is never cut
		// short, so what is beyond would be in the way for ever.
		data, err := s.fs.readFile(name, slotSize)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if outOfResources(err) {
			return false, nil, err
		}
		present = true
		var r record
		if err == nil {
			r, err = decodeSlot(data)
		}
		if err != nil {
			causes = append(causes, fmt.Errorf("%s: %w", name, err))
			continue
		}
		s.slots[i] = &r
		if s.cur < 0 || r.Gen > s.rec.Gen {
			s.rec, s.cur = r, i
		}
	}
	for _, r := range s.slots {
		if r != nil && r.MinReader > recordSchema {
			s.rec = *r
			s.frozen = fmt.Errorf("%w: schema %d, which takes a reader of %d; this is %d", errTooNew, r.Schema, r.MinReader, recordSchema)
		}
	}
	return present, causes, nil
}

// outOfResources reports whether a file could not be read because the machine or
// the process has too much open, or too little memory.
func outOfResources(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR}, func(errno error) bool {
		return errors.Is(err, errno)
	})
}

// heldPayloads reports whether there are payloads. Unusable slots without any
// are what is left of a store whose creation was cut short, to which nothing
// was ever committed.
func (s *store) heldPayloads() bool {
	names, err := s.fs.readDir(payloadDir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		var d Digest
		return d.UnmarshalText([]byte(name)) == nil
	})
}

// setAside renames slots of which none is usable, for people to look at, and
// begins anew.
func (s *store) setAside(causes []error) error {
	damage := &ReasonError{Reason: ReasonStoreCorrupt, Err: errors.Join(causes...)}
	for _, name := range slotNames() {
		err := s.fs.rename(name, name+badSuffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &ReasonError{Reason: ReasonStoreCorrupt, Err: errors.Join(damage.Err, err)}
		}
	}
	if err := s.create(); err != nil {
		damage.Err = errors.Join(damage.Err, err)
	}
	return damage
}

// create makes an empty store (W3). It may be called again after an error.
func (s *store) create() error {
	if err := s.fs.mkdir(payloadDir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	empty := emptyRecord()
	for i := range s.slots {
		if err := s.writeSlot(i, empty); err != nil {
			return err
		}
	}
	s.cur = 0
	return s.settle()
}

// repair rewrites a slot that is torn or missing from the good one (W4), so
// that the next single fault does not find the last copy.
func (s *store) repair() error {
	if s.slots[1-s.cur] != nil {
		return nil
	}
	if err := s.writeSlot(1-s.cur, s.rec); err != nil {
		return err
	}
	return s.settle()
}

// writeSlot writes r to slot i, and keeps it in memory only when it is durable
// (W6).
func (s *store) writeSlot(i int, r record) error {
	data, err := encodeSlot(r)
	if err != nil {
		return err
	}
	if err := s.fs.overwrite(slotNames()[i], data); err != nil {
		return err
	}
	s.slots[i] = &r
	return nil
}

// settle makes the entries of the slots and of the directory itself durable.
func (s *store) settle() error {
	if err := errors.Join(s.fs.syncDir("."), s.fs.syncDir("..")); err != nil {
		return err
	}
	s.settled = true
	return nil
}

// removeLeftovers removes payloads whose writing was cut short. It is best
// effort: a read-only disk keeps them.
func (s *store) removeLeftovers() {
	names, err := s.fs.readDir(payloadDir)
	if err != nil {
		return
	}
	for _, name := range names {
		if strings.HasSuffix(name, tmpSuffix) {
			_ = s.fs.remove(payloadDir + "/" + name) // the next open tries again
		}
	}
}

// commit makes r the record. When it returns nil, r is durable; otherwise the
// record is what it was, here and, but for the one case that the flush failed
// after the write, on the disk.
func (s *store) commit(r record) error {
	if err := s.writable(); err != nil {
		return err
	}
	if !s.settled {
		if err := s.settle(); err != nil {
			return err
		}
	}
	r.Schema, r.MinReader, r.Build = recordSchema, recordMinReader, s.build
	r.Gen = s.rec.Gen + 1
	// W2. After a commit that failed this is the same slot again: whatever
	// the kernel kept of that write is overwritten and flushed anew, because a
	// repeated flush alone may report success for pages it has dropped.
	target := 1 - s.cur
	if err := s.writeSlot(target, r); err != nil {
		return err
	}
	s.rec, s.cur = r, target
	return nil
}

// writable returns why nothing can be written, after it tried once more to make
// or repair the slots where that failed before.
func (s *store) writable() error {
	switch {
	case !s.opened:
		return errors.New("the store is not open")
	case s.frozen != nil:
		return s.frozen
	case s.cur < 0:
		return s.create()
	}
	return s.repair()
}

// load returns a payload, or an error that wraps errCorrupt where it is not what
// its name says or can't be read. What can't be read is as good as lost: it is
// to be replaced.
func (s *store) load(d Digest) ([]byte, error) {
	if !s.opened {
		return nil, errors.New("the store is not open")
	}
	data, err := s.fs.readFile(payloadPath(d), MaxPayloadSize+1)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if DigestOf(data) != d {
		return nil, errCorrupt
	}
	return data, nil
}

// save makes a payload durable (W1). One that is there and whole may be left
// of a process that died before it flushed the directory: its bytes were
// flushed before it got its name, its name may not be.
func (s *store) save(d Digest, data []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	if _, err := s.load(d); err == nil {
		return s.fs.syncDir(payloadDir)
	}
	if err := s.fs.mkdir(payloadDir); err == nil {
		if err := s.fs.syncDir("."); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	tmp := payloadPath(d) + tmpSuffix
	if err := s.writeFile(tmp, data); err != nil {
		return errors.Join(err, s.discard(tmp))
	}
	if err := s.fs.rename(tmp, payloadPath(d)); err != nil {
		return errors.Join(err, s.discard(tmp))
	}
	return s.fs.syncDir(payloadDir)
}

// writeFile writes and flushes a new file.
func (s *store) writeFile(name string, data []byte) error {
	f, err := s.fs.createFile(name)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Sync(), f.Close())
}

// discard removes a file that could not be written, so that it does not hold
// what space is left.
func (s *store) discard(name string) error {
	if err := s.fs.remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// prune removes the payloads that neither slot mentions (W5): the older slot
// stays one that can be fallen back on. Files of other names are not touched.
func (s *store) prune() error {
	if err := s.writable(); err != nil {
		return err
	}
	var keep []Digest
	for _, r := range s.slots {
		if r == nil {
			return nil // what it mentions is unknown
		}
		for _, ref := range r.refs() {
			keep = append(keep, ref.Digest)
		}
	}
	names, err := s.fs.readDir(payloadDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		var d Digest
		if d.UnmarshalText([]byte(name)) == nil && !slices.Contains(keep, d) {
			errs = append(errs, s.fs.remove(payloadDir+"/"+name))
		}
	}
	return errors.Join(errs...)
}

// close gives the directory free for another process.
func (s *store) close() error {
	if !s.opened {
		return nil
	}
	s.opened = false
	return s.fs.close()
}

// payloadPath returns the name of the file of a payload.
func payloadPath(d Digest) string { return payloadDir + "/" + d.String() }
