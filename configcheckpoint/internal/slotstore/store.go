// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slotstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"syscall"

	"github.com/kubewright/kubewright/internal/durable"
)

// The names in a store's directory.
const (
	SlotA      = "slot.a"
	SlotB      = "slot.b"
	PayloadDir = "p"
	NoteFile   = "note"
	// BadSuffix is appended to the names of slots that were set aside.
	BadSuffix = ".bad"
)

// slotNames returns the names of the two slots, by index.
func slotNames() [2]string { return [2]string{SlotA, SlotB} }

var (
	// ErrPayload is wrapped by the error of Load for a payload that is missing
	// or damaged, so that saving the same bytes again repairs it.
	ErrPayload = errors.New("the stored payload is damaged or missing")
	// ErrSlots is wrapped by the damage that Open returns if neither slot held a
	// valid record. The slots were renamed to slot.a.bad and slot.b.bad.
	ErrSlots = errors.New("no valid record")
	// ErrNotOpen is returned before Open has succeeded and after Close.
	ErrNotOpen = errors.New("the store is not open")
)

// Dir returns the directory of a store. Payloads are not trusted: their name is
// their digest.
func Dir(path string) durable.FS { return durable.Dir(path, SlotA, SlotB, NoteFile, PayloadDir) }

// A Digest is the SHA-256 of a payload.
type Digest = [sha256.Size]byte

// Info is the part of a record that a Store needs.
type Info struct {
	// Generation is 0 for Config.Empty, and one more with each commit.
	Generation uint64
	// Payloads are those that the record refers to.
	Payloads []Digest
	// ReadOnly is why this program must not write a store that holds the record,
	// or nil. A record of a newer program may have such a reason.
	ReadOnly error
}

// Config configures a Store. All fields are required.
type Config struct {
	// FS is the directory of the store.
	FS durable.FS
	// Parse returns the facts about a record that Commit wrote, by this program or
	// another version of it. An error means that the record is damaged.
	Parse func(record []byte) (Info, error)
	// Empty is the record of a new store, with generation 0.
	Empty []byte
	// MaxPayload is the size limit of a payload in bytes.
	MaxPayload int
}

// A Store keeps one record and the payloads that it refers to. It is not safe
// for concurrent use.
type Store struct {
	cfg Config

	opened bool
	slots  [2]*slot // the content of each slot; nil: nothing usable
	cur    int      // the slot of the newest record, or -1
	note   []byte
	// settled means that the names of both slots and of the payload directory
	// are durable.
	settled bool
	// readOnly is why nothing may be written, or nil.
	readOnly error
	// unreadable is the error of a slot that could not be read, or nil.
	unreadable error
}

// slot is the content of a slot file.
type slot struct {
	record []byte
	info   Info
}

// New returns a Store. It does no I/O.
func New(cfg Config) *Store { return &Store{cfg: cfg, cur: -1} }

// Open reads the store, repairs the remains of a crash, and locks out other
// processes until Close. An error means that the store could not be opened; the
// call may be repeated. A store that is open may still be damaged: damage then
// names the parts that were lost or could not be repaired. While [Store.Unreadable] returns
// an error, Open may be called again on the open store, to read it again.
func (s *Store) Open() (damage, err error) {
	if !s.opened {
		if err := s.cfg.FS.Open(); err != nil {
			return nil, fmt.Errorf("open the store: %w", err)
		}
	}
	s.slots, s.cur, s.settled, s.readOnly = [2]*slot{}, -1, false, nil
	present, invalid := s.readSlots()
	if s.unreadable != nil && s.cur < 0 {
		s.opened = false
		return nil, errors.Join(fmt.Errorf("open the store: %w", s.unreadable), s.cfg.FS.Close())
	}
	s.opened = true
	s.readNote()
	switch {
	case s.readOnly != nil:
		return s.readOnly, nil
	case s.cur >= 0:
		// Slots of the same generation were written by create or by repair, and
		// that process may have died before it flushed the directory.
		s.settled = s.slots[0] != nil && s.slots[1] != nil && s.slots[0].info.Generation != s.slots[1].info.Generation
		damage = s.repair()
	case present && s.hasPayloads():
		damage = s.setAside(invalid)
	default:
		damage = s.create()
	}
	durable.RemoveLeftovers(s.cfg.FS, PayloadDir)
	return damage, nil
}

// readSlots reads both slots and selects the newest record. It returns whether
// a slot file exists, and why the invalid ones are invalid. It sets unreadable
// if reading failed.
func (s *Store) readSlots() (present bool, invalid []error) {
	s.unreadable = nil
	for i, name := range slotNames() {
		// A longer file is read as far as a slot goes. Slots are never truncated,
		// so the excess would stay in the way indefinitely.
		data, err := s.cfg.FS.ReadFile(name, slotSize)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		present = true
		if err != nil && !errors.Is(err, durable.ErrNotRegular) {
			s.unreadable = errors.Join(s.unreadable, fmt.Errorf("read %s: %w", name, err))
			continue
		}
		var found slot
		if err == nil {
			found, err = s.parse(data)
		}
		if err != nil {
			invalid = append(invalid, fmt.Errorf("%s: %w", name, err))
			continue
		}
		s.slots[i] = &found
		if s.cur < 0 || found.info.Generation > s.info().Generation {
			s.cur = i
		}
	}
	for i, found := range s.slots {
		if found != nil && found.info.ReadOnly != nil && (s.readOnly == nil || found.info.Generation > s.info().Generation) {
			s.cur, s.readOnly = i, found.info.ReadOnly
		}
	}
	if s.readOnly == nil {
		s.readOnly = s.unreadable
	}
	return present, invalid
}

// parse returns the content of a slot file.
func (s *Store) parse(data []byte) (slot, error) {
	record, err := decodeFrame(data, slotSize)
	if err != nil {
		return slot{}, err
	}
	info, err := s.cfg.Parse(record)
	return slot{record, info}, err
}

// info returns the facts about the newest record.
func (s *Store) info() Info { return s.slots[s.cur].info }

// Record returns the newest committed record; nil if the store is not open or
// could not be created.
func (s *Store) Record() []byte {
	if !s.opened || s.cur < 0 {
		return nil
	}
	return s.slots[s.cur].record
}

// Unreadable returns the error of a slot that could not be read. While it is not
// nil, Record may be one generation old, and nothing is written.
func (s *Store) Unreadable() error { return s.unreadable }

// Complete reports whether the store is open and every slot was read, so that Open need not
// be called again.
func (s *Store) Complete() bool { return s.opened && s.unreadable == nil }

// ReadOnly returns why nothing may be written, or nil.
func (s *Store) ReadOnly() error { return s.readOnly }

// hasPayloads reports whether there may be payloads. Invalid slots without
// payloads are a store whose creation was cut short; nothing was ever committed
// to it.
func (s *Store) hasPayloads() bool {
	names, err := s.cfg.FS.ReadDir(PayloadDir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(names, isPayload)
}

// setAside renames invalid slots, so that an administrator can inspect them, and
// creates the store again.
func (s *Store) setAside(invalid []error) error {
	damage := fmt.Errorf("%w: %w", ErrSlots, errors.Join(invalid...))
	for _, name := range slotNames() {
		err := s.cfg.FS.Rename(name, name+BadSuffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(damage, err)
		}
	}
	if err := s.create(); err != nil {
		return errors.Join(damage, err)
	}
	return damage
}

// create makes an empty store. It may be called again after an error.
func (s *Store) create() error {
	if err := s.cfg.FS.Mkdir(PayloadDir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for i := range s.slots {
		if err := s.writeSlot(i, s.cfg.Empty); err != nil {
			return err
		}
	}
	s.cur = 0
	// Written now, the note needs no space when the disk is full.
	if err := s.SetNote(nil); err != nil {
		return err
	}
	return s.settle()
}

// repair rewrites a slot that is torn or missing from the good one. The next
// commit flushes the directory.
func (s *Store) repair() error {
	if s.slots[1-s.cur] != nil {
		return nil
	}
	return s.writeSlot(1-s.cur, s.slots[s.cur].record)
}

// writeSlot writes a record to slot i, and keeps it in memory only if it is
// durable.
func (s *Store) writeSlot(i int, record []byte) error {
	info, err := s.cfg.Parse(record)
	if err != nil {
		return fmt.Errorf("parse the new record: %w", err)
	}
	data, err := encodeFrame(record, slotSize)
	if err != nil {
		return err
	}
	if err := s.cfg.FS.Overwrite(slotNames()[i], data, 0, true); err != nil {
		return err
	}
	s.slots[i] = &slot{record, info}
	return nil
}

// settle flushes the directories whose names may not be durable. The parent
// needs it only until the first commit: no process acknowledges one before.
func (s *Store) settle() error {
	if s.settled {
		return nil
	}
	if err := s.cfg.FS.SyncDir("."); err != nil {
		return err
	}
	if s.info().Generation == 0 {
		if err := s.cfg.FS.SyncDir(".."); err != nil {
			return err
		}
	}
	s.settled = true
	return nil
}

// Commit makes record the newest one. Its generation must be one more than that
// of Record. When Commit returns nil, the record is durable. Otherwise Record is
// unchanged, and so is the disk, unless the flush failed after the write.
func (s *Store) Commit(record []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	info, err := s.cfg.Parse(record)
	if err != nil {
		return fmt.Errorf("parse the new record: %w", err)
	}
	if want := s.info().Generation + 1; info.Generation != want {
		return fmt.Errorf("generation %d committed after %d", info.Generation, s.info().Generation)
	}
	if err := s.settle(); err != nil {
		return err
	}
	spare := 1 - s.cur
	if err := s.writeSlot(spare, record); err != nil {
		return err
	}
	s.cur = spare
	return nil
}

// writable returns why nothing can be written. It first creates or repairs the
// slots if that failed before.
func (s *Store) writable() error {
	switch {
	case !s.opened:
		return ErrNotOpen
	case s.readOnly != nil:
		return s.readOnly
	case s.cur < 0:
		return s.create()
	}
	return s.repair()
}

// Load returns a payload. The error wraps ErrPayload if the payload is missing,
// damaged, or on a bad sector, so that it must be saved again. Any other error,
// such as EMFILE, says nothing about the payload.
func (s *Store) Load(d Digest) ([]byte, error) {
	if !s.opened {
		return nil, ErrNotOpen
	}
	data, err := s.cfg.FS.ReadFile(PayloadPath(d), s.cfg.MaxPayload+1)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, durable.ErrNotRegular), errors.Is(err, syscall.EIO):
		// A new copy takes nothing away: it has the same bytes, in another file.
		return nil, fmt.Errorf("%w: %w", ErrPayload, err)
	case err != nil:
		return nil, fmt.Errorf("read the payload: %w", err)
	case sha256.Sum256(data) != d:
		return nil, ErrPayload
	}
	return data, nil
}

// Save makes a payload durable, so that a record may refer to it.
func (s *Store) Save(d Digest, data []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	if _, err := s.Load(d); err == nil {
		// It may be left from a process that died before it flushed the directory.
		// Its bytes were flushed before it got its name; the name may not be.
		return s.cfg.FS.SyncDir(PayloadDir)
	}
	if err := s.cfg.FS.Mkdir(PayloadDir); err == nil {
		s.settled = false // until a flush of its name succeeds
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := s.settle(); err != nil {
		return err
	}
	return durable.Replace(s.cfg.FS, PayloadPath(d), data)
}

// Prune removes the payloads that neither slot refers to. Files with other names
// are left alone.
func (s *Store) Prune() error {
	if err := s.writable(); err != nil {
		return err
	}
	names, err := s.cfg.FS.ReadDir(PayloadDir)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, found := range s.slots {
		for _, d := range found.info.Payloads {
			keep[hex.EncodeToString(d[:])] = true
		}
	}
	var errs []error
	for _, name := range names {
		if isPayload(name) && !keep[name] {
			errs = append(errs, s.cfg.FS.Remove(PayloadDir+"/"+name))
		}
	}
	return errors.Join(errs...)
}

// Note returns the text of the last SetNote, by this process or one before it;
// nil if there is none. After a power cut it may be an older text or nil.
func (s *Store) Note() []byte { return s.note }

// SetNote replaces the note; nil removes it. The note is not flushed, so it
// costs no wait and survives the death of the process only.
func (s *Store) SetNote(text []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	data := make([]byte, noteSize)
	if text != nil {
		var err error
		if data, err = encodeFrame(text, noteSize); err != nil {
			return err
		}
	}
	if err := s.cfg.FS.Overwrite(NoteFile, data, 0, false); err != nil {
		return err
	}
	s.note = text
	return nil
}

// readNote reads the note. A note that can't be read is none.
func (s *Store) readNote() {
	s.note = nil
	data, err := s.cfg.FS.ReadFile(NoteFile, noteSize)
	if err != nil {
		return
	}
	if text, err := decodeFrame(data, noteSize); err == nil {
		s.note = text
	}
}

// Close releases the directory for another process.
func (s *Store) Close() error {
	if !s.opened {
		return nil
	}
	s.opened = false
	return s.cfg.FS.Close()
}

// PayloadPath returns the file name of a payload.
func PayloadPath(d Digest) string { return PayloadDir + "/" + hex.EncodeToString(d[:]) }

// isPayload reports whether a name in the payload directory is that of a
// payload.
func isPayload(name string) bool {
	d, err := hex.DecodeString(name)
	return err == nil && len(d) == sha256.Size && hex.EncodeToString(d) == name
}

const (
	// slotSize is the length of a slot file in bytes. A slot is always written
	// completely, so overwriting it never allocates space.
	slotSize = 8192
	// noteSize is the length of the note file in bytes.
	noteSize = 1024
	// frameMagic begins every frame. The frame never changes, so that old code
	// distinguishes a newer record from a damaged one.
	frameMagic = "cc1"
)

// errBlank is the error of a frame that is empty or holds only zeros. A crash
// leaves that of a file whose data was never flushed.
var errBlank = errors.New("blank")

// encodeFrame returns size bytes: a header with the length and SHA-256 of text,
// text, and spaces, so that an administrator can read the file with cat.
func encodeFrame(text []byte, size int) ([]byte, error) {
	sum := sha256.Sum256(text)
	frame := make([]byte, 0, size)
	frame = fmt.Appendf(frame, "%s %d %x\n%s\n", frameMagic, len(text), sum, text)
	if len(frame) > size {
		return nil, fmt.Errorf("%d bytes with the header do not fit in %d", len(frame), size)
	}
	return append(frame, bytes.Repeat([]byte{' '}, size-len(frame))...), nil
}

// decodeFrame is the inverse of encodeFrame. It returns errBlank for an empty
// frame, and another error if the text is not complete.
func decodeFrame(frame []byte, size int) ([]byte, error) {
	if len(bytes.Trim(frame, "\x00")) == 0 {
		return nil, errBlank
	}
	if len(frame) != size {
		return nil, fmt.Errorf("%d bytes long, not %d", len(frame), size)
	}
	header, rest, ok := bytes.Cut(frame, []byte("\n"))
	fields := bytes.Split(header, []byte(" "))
	if !ok || len(fields) != 3 || string(fields[0]) != frameMagic {
		return nil, errors.New("no header of this format")
	}
	length, err := strconv.Atoi(string(fields[1]))
	if err != nil || length < 0 || length >= len(rest) {
		return nil, errors.New("the header's length is wrong")
	}
	// The rest is padding. Damage to it is harmless.
	text := rest[:length]
	sum := sha256.Sum256(text)
	if hex.EncodeToString(sum[:]) != string(fields[2]) {
		return nil, errors.New("the checksum does not match")
	}
	return text, nil
}

// EncodeSlot returns the content of a slot file that holds record. Tests use it
// to place a record on a disk.
func EncodeSlot(record []byte) ([]byte, error) { return encodeFrame(record, slotSize) }

// DecodeSlot returns the record in the content of a slot file.
func DecodeSlot(data []byte) ([]byte, error) { return decodeFrame(data, slotSize) }
