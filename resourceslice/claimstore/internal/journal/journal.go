// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package journal decides what the file of a claim store means, and which bytes
// change it. It does no I/O.
//
// The file is text. Its first line names the format and the driver. Each further
// line is a record of one claim:
//
//	claimstore 1 gpu.example.com
//	+ 5d41402abc4b2a76b9719d911017c592 {"uid":"…","phase":"Prepared","state":{…}}
//	- 7d793037a0760186574b0282f2f435e7 {"uid":"…","phase":"Prepared","state":{…}}
//
// A line is a mark, the first 16 bytes of the SHA-256 of its JSON, and the JSON.
// The last line of a claim counts. The mark "!" means that the driver has begun to
// undo it, and "-" that the claim has ended. The mark is the only byte that is ever
// changed in place, and the checksum leaves it out, so that a claim can end on a full
// disk. Spaces before the end of a line have no meaning.
//
// JSON is written once and copied as it is, so that a field of a newer version
// survives an older one.
package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Version is the version of the format.
const Version = 1

// The marks that a line gets after it was written.
const (
	Undoing byte = '!' // the driver has begun to undo it
	Ended   byte = '-'
)

const (
	magic         = "claimstore "
	live     byte = '+'
	jsonFrom      = 2 + 2*16 + 1 // the mark, the checksum, and the spaces behind them
	// slack is the size of superseded lines that no rewrite is worth.
	slack = 32 << 10
	// keptEnded is the number of ended claims that a rewrite keeps, newest first.
	keptEnded = 256
)

var (
	// ErrVersion is returned by Parse for a file of a newer format.
	ErrVersion = errors.New("written by a newer version of claimstore")
	// ErrDriver is returned by Parse for the file of another driver.
	ErrDriver = errors.New("belongs to another driver")
	// ErrIncomplete is returned by User if a record that it can't rely on may name the
	// device.
	ErrIncomplete = errors.New("the records do not show that the device is unused")
)

// A Phase is what was done for a claim when its record was written.
type Phase string

// The phases of a record.
const (
	Preparing Phase = "Preparing" // the driver is about to change something
	Prepared  Phase = "Prepared"
	Absent    Phase = "Absent" // nothing was recorded before the claim ended
)

// A Device is a device that a claim holds. Its fields are those of claimstore.Device.
type Device struct {
	// Pool, Name and ShareID identify the device.
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	ShareID string `json:"shareID,omitempty"`
}

// An Entry is the record of a claim.
type Entry struct {
	// V is the version of the format. Encode sets it.
	V int `json:"v"`
	// ID is another one for each record of a claim. Records of older versions and those
	// of claims that were never prepared have none.
	ID string `json:"id,omitempty"`
	// UID, Namespace and Name are those of the claim.
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Phase is what was done, and Boot the boot of the machine on which it was.
	Phase Phase  `json:"phase"`
	Boot  string `json:"boot"`
	// Allocation is a digest of the allocation that it was done for. Records of older
	// versions have none.
	Allocation string `json:"allocation,omitempty"`
	// Devices are those that the claim holds until it ends.
	Devices []Device `json:"devices,omitempty"`
	// Admin are devices that the claim uses with admin access. It does not hold them.
	Admin []Device `json:"admin,omitempty"`
	// Identity is a digest of the fields that say which claim uses which devices on which
	// boot. If the rest of the line is damaged, these can still be trusted. Encode sets it.
	// Records of older versions have none, and no Admin.
	Identity string `json:"identity,omitempty"`
	// State is the driver's, as it was encoded.
	State json.RawMessage `json:"state,omitempty"`

	// Undoing is set if the driver has begun to undo what was done, or has undone it.
	Undoing bool `json:"-"`
	// Ended is set if the claim has ended: the entry is a tombstone.
	Ended bool `json:"-"`
	// Unreadable is set if the line is damaged or of a newer version. The other
	// fields then are what could be read of it.
	Unreadable bool `json:"-"`
	// Trusted is set if the line is intact, or Identity is right. Otherwise the claim, its
	// name or its devices may be others than those that were written.
	Trusted bool `json:"-"`
}

// identity returns the Identity of e.
func (e *Entry) identity() string {
	// Texts can always be encoded.
	fields, _ := json.Marshal([]any{e.UID, e.Namespace, e.Name, e.Boot, e.Devices, e.Admin})
	return checksum(fields)[:16]
}

// uses reports whether the claim uses a device, or a share of it.
func (e *Entry) uses(pool, name string) bool {
	is := func(d Device) bool { return d.Pool == pool && d.Name == name }
	return slices.ContainsFunc(e.Devices, is) || slices.ContainsFunc(e.Admin, is)
}

// A Log is the content of the file. It is not safe for concurrent use.
type Log struct {
	driver string

	// raw is the file.
	// Invariant: lines are the record lines of raw, in order and without overlap,
	// and end at or before good.
	// Invariant: good is at most len(raw), and what raw has from good on is at most
	// one damaged line and a piece without a newline.
	raw   []byte
	good  int
	lines []*line

	// Invariant: latest has the last line of each UID among the lines.
	latest map[string]*line

	lost [][]byte // damaged lines that name no claim, or one that has a later line

	headerDamaged bool
}

type line struct {
	from, to int // in raw, with the newline
	entry    Entry
}

// New returns the content of a file without claims.
func New(driver string) *Log {
	raw := fmt.Appendf(nil, "%s%d %s\n", magic, Version, driver)
	return &Log{driver: driver, raw: raw, good: len(raw), latest: map[string]*line{}}
}

// Parse returns the content of a file and keeps data. Damage is no error: it is in
// Lost, and in entries that are Unreadable.
func Parse(driver string, data []byte) (*Log, error) {
	l := &Log{driver: driver, raw: data, latest: map[string]*line{}, headerDamaged: true}
	for l.good < len(data) {
		length := bytes.IndexByte(data[l.good:], '\n') + 1
		if length == 0 {
			break
		}
		from, to := l.good, l.good+length
		text := data[from:to]
		if from == 0 {
			if err := l.parseHeader(text); err != nil {
				return nil, err
			}
			if !l.headerDamaged {
				l.good = to
				continue
			}
		}
		entry, intact := parseLine(text)
		if !intact && entry.UID == "" && bytes.IndexByte(data[to:], '\n') < 0 {
			// The last line: a write that was cut off, and never acknowledged, looks
			// like this. What it adds is lost, and what comes next is written over it.
			// A line that can still be parsed was written as a whole.
			l.lose(text)
			break
		}
		l.good = to
		if entry.UID == "" {
			l.lose(text)
			continue
		}
		l.add(&line{from: from, to: to, entry: entry})
	}
	if l.headerDamaged && len(l.lost) == 0 {
		l.lose([]byte(noHeader))
	}
	return l, nil
}

// noHeader stands for what a file had that has no line: it was renamed into place with its
// header, and may have had records. Some power cuts leave such a file, empty or of zeros.
const noHeader = "the file has lost its first line, and maybe records"

// add adds a line of a claim behind the others. A damaged line does not supersede a
// readable one: the readable one may be older, and what it asks for is harmless if
// it is done once more.
func (l *Log) add(n *line) {
	before := l.latest[n.entry.UID]
	if before != nil && n.entry.Unreadable && !before.entry.Unreadable {
		l.lose(l.raw[n.from:n.to])
		return
	}
	if before != nil && before.entry.Unreadable && !before.entry.Ended {
		l.lose(l.raw[before.from:before.to])
	}
	l.lines = append(l.lines, n)
	l.latest[n.entry.UID] = n
}

// lose records a damaged line, unless it is blank.
func (l *Log) lose(text []byte) {
	if text = bytes.TrimSpace(text); len(text) > 0 {
		l.lost = append(l.lost, text)
	}
}

// parseHeader clears headerDamaged if text is the header of this version and driver.
func (l *Log) parseHeader(text []byte) error {
	rest, ok := strings.CutPrefix(strings.TrimRight(string(text), " \n"), magic)
	version, driver, ok2 := strings.Cut(rest, " ")
	switch {
	case !ok || !ok2:
		return nil
	case version != fmt.Sprint(Version):
		return fmt.Errorf("format %.20q: %w", version, ErrVersion)
	case driver != l.driver:
		return fmt.Errorf("%w: %.80q", ErrDriver, driver)
	}
	l.headerDamaged = false
	return nil
}

// parseLine returns the entry of a line, without a UID if it names no claim, and whether
// its checksum is right.
func parseLine(text []byte) (e Entry, intact bool) {
	text = bytes.TrimRight(text, " \n")
	if len(text) <= jsonFrom {
		return Entry{}, false
	}
	object := text[jsonFrom:]
	intact = string(text[1:jsonFrom]) == " "+checksum(object)+" "
	if err := json.Unmarshal(object, &e); err != nil {
		return Entry{}, false
	}
	e.Unreadable = !intact || e.V != Version
	e.Trusted = intact || e.Identity == e.identity()
	e.setMark(text[0])
	return e, intact
}

func (e *Entry) setMark(mark byte) { e.Undoing, e.Ended = mark == Undoing, mark == Ended }

func checksum(object []byte) string {
	sum := sha256.Sum256(object)
	return hex.EncodeToString(sum[:16])
}

// Encode returns the line of an entry, with its newline.
func Encode(e Entry) ([]byte, error) {
	e.V = Version
	e.Identity = e.identity()
	object, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	text := Seal(object)
	if e.Ended {
		text[0] = Ended
	}
	return text, nil
}

// Seal returns the line of an entry that is encoded already.
func Seal(object []byte) []byte {
	return fmt.Appendf(nil, "%c %s %s\n", live, checksum(object), object)
}

// Bytes returns the content of the file. The caller must not change it.
func (l *Log) Bytes() []byte { return l.raw }

// Is reports whether data is the content of the file.
func (l *Log) Is(data []byte) bool { return bytes.Equal(l.raw, data) }

// Get returns the entry of a claim, and false if there is none.
func (l *Log) Get(uid string) (Entry, bool) {
	n := l.latest[uid]
	if n == nil {
		return Entry{}, false
	}
	return n.entry, true
}

// All yields the entry of each claim that has not ended, oldest first.
func (l *Log) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, n := range l.lines {
			if l.latest[n.entry.UID] == n && !n.entry.Ended && !yield(n.entry) {
				return
			}
		}
	}
}

// Holder returns a claim other than uid that holds the device.
func (l *Log) Holder(uid string, device Device) (Entry, bool) {
	for e := range l.All() {
		if e.UID != uid && slices.Contains(e.Devices, device) {
			return e, true
		}
	}
	return Entry{}, false
}

// User returns a claim that uses the device, or a share of it, and false if no claim does.
// A claim that holds the device uses it, and so does one that has admin access. aside are
// damaged lines that earlier rewrites have left out. The error says why neither is certain;
// it wraps ErrIncomplete.
func (l *Log) User(pool, name string, aside [][]byte) (user Entry, used bool, err error) {
	var unknown error
	consider := func(e Entry) {
		switch {
		case e.uses(pool, name):
			user, used = e, true
		case !e.Trusted, e.V != Version:
			unknown = fmt.Errorf("%w: the record of claim %.60q is damaged, or of a newer version", ErrIncomplete, e.UID)
		case e.Identity == "":
			unknown = fmt.Errorf("%w: an older version has written the record of claim %.60q, without devices with admin access", ErrIncomplete, e.UID)
		}
	}
	for e := range l.All() {
		consider(e)
	}
	for _, text := range slices.Concat(l.lost, aside) {
		e, _ := parseLine(text)
		switch {
		case e.UID == "":
			unknown = fmt.Errorf("%w: a damaged record names no claim: %.200q", ErrIncomplete, text)
		case e.Trusted && (e.Ended || l.latest[e.UID] != nil): // what was recorded later counts
		default:
			consider(e)
		}
	}
	if used {
		return user, true, nil
	}
	return Entry{}, false, unknown
}

// Append returns what to write at which offset of the file to add an entry. It
// covers what is left of a write that was cut off. Call Wrote once it is on the disk.
func (l *Log) Append(e Entry) (data []byte, offset int, err error) {
	data, err = Encode(e)
	if err != nil {
		return nil, 0, err
	}
	if torn := len(l.raw) - l.good; torn > len(data) {
		data = append(data[:len(data)-1], bytes.Repeat([]byte{' '}, torn-len(data)+1)...)
		data[len(data)-1] = '\n'
	}
	return data, l.good, nil
}

// Mark returns what to write at which offset of the file to give the record of a claim
// a mark, and false if there is none, or it has ended. Call Wrote once it is on the disk.
func (l *Log) Mark(uid string, mark byte) (data []byte, offset int, ok bool) {
	n := l.latest[uid]
	if n == nil || n.entry.Ended {
		return nil, 0, false
	}
	return []byte{mark}, n.from, true
}

// Wrote updates l after data was written at offset, as Append or Mark said.
func (l *Log) Wrote(data []byte, offset int) {
	if offset == l.good {
		entry, _ := parseLine(data)
		l.raw = append(l.raw[:offset], data...)
		l.good = len(l.raw)
		l.add(&line{from: offset, to: l.good, entry: entry})
		return
	}
	copy(l.raw[offset:], data)
	for _, n := range l.lines {
		if n.from == offset {
			n.entry.setMark(data[0])
		}
	}
}

// Wasteful reports whether the file should be replaced by Rewritten.
func (l *Log) Wasteful() bool {
	size := 0
	for _, e := range l.current() {
		size += e.to - e.from
	}
	return l.headerDamaged || len(l.lost) > 0 || len(l.raw) > 2*size+slack
}

// Rewritten returns the content of a file with the same claims, without lines
// that are superseded or lost. Of the claims that have ended it keeps the newest.
func (l *Log) Rewritten() []byte {
	data := New(l.driver).raw
	for _, n := range l.current() {
		data = append(data, l.raw[n.from:n.to]...)
	}
	return data
}

// current returns the lines that Rewritten keeps.
func (l *Log) current() (kept []*line) {
	skip := -keptEnded
	for _, n := range l.latest {
		if n.entry.Ended {
			skip++
		}
	}
	for _, n := range l.lines {
		if l.latest[n.entry.UID] != n {
			continue
		}
		if n.entry.Ended {
			if skip--; skip >= 0 {
				continue
			}
		}
		kept = append(kept, n)
	}
	return kept
}

// Lost returns damaged lines that stand for no entry.
func (l *Log) Lost() [][]byte { return l.lost }

// Check returns an error that names an invariant that does not hold.
func (l *Log) Check() error {
	end := 0
	last := map[string]*line{}
	for _, n := range l.lines {
		switch {
		case n.from < end || n.to <= n.from || n.to > l.good:
			return fmt.Errorf("line %d:%d is not behind %d and before %d", n.from, n.to, end, l.good)
		case bytes.IndexByte(l.raw[n.from:n.to], '\n') != n.to-n.from-1:
			return fmt.Errorf("line %d:%d is no line of the file", n.from, n.to)
		case n.entry.UID == "":
			return fmt.Errorf("line %d:%d names no claim", n.from, n.to)
		case n.entry.Ended != (l.raw[n.from] == Ended), n.entry.Undoing != (l.raw[n.from] == Undoing):
			return fmt.Errorf("line %d:%d: ended is %v, undoing %v, and the mark %q", n.from, n.to, n.entry.Ended, n.entry.Undoing, l.raw[n.from])
		}
		end = n.to
		last[n.entry.UID] = n
	}
	if !maps.Equal(last, l.latest) {
		return errors.New("latest does not have the last line of each claim")
	}
	if l.good > len(l.raw) {
		return fmt.Errorf("good is %d of %d bytes", l.good, len(l.raw))
	}
	if rest := l.raw[l.good:]; len(rest) > 0 {
		if at := bytes.IndexByte(rest, '\n'); at >= 0 {
			if _, intact := parseLine(rest[:at+1]); intact || bytes.IndexByte(rest[at+1:], '\n') >= 0 {
				return fmt.Errorf("there are lines behind %d", l.good)
			}
		}
	}
	return nil
}
