// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The version of the record that this code writes, and the oldest code that may
// read it. A change that older code would misread raises both.
const (
	Schema    = 1
	MinReader = 1
)

// A Record is the state on the disk, except for the payloads. It is a value:
// nothing that its pointers and slices reach is ever changed.
//
// Invariant: a record names a version that can be.
// Invariant: every configuration in it has a digest.
// Invariant: a trial is about the assigned configuration.
// Invariant: no count is below zero.
type Record struct {
	// Schema is the version of the record, MinReader the oldest that can read it, and
	// Gen counts the records that were written.
	Schema    int    `json:"schema"`
	MinReader int    `json:"minReader"`
	Gen       uint64 `json:"gen"`
	// Build is the program version that wrote the record, for people.
	Build string `json:"build,omitempty"`
	// Assigned is the configuration that the source wants; nil is the built-in
	// default.
	Assigned *Ref `json:"assigned,omitempty"`
	// LKG is the last configuration that passed its trial.
	LKG *Ref `json:"lastKnownGood,omitempty"`
	// Previous was LKG before it.
	Previous *Ref `json:"previous,omitempty"`
	// Trial counts the starts of Assigned while it is not proven.
	Trial *Trial `json:"trial,omitempty"`
	// Rejected are the configurations not to run again, oldest first.
	Rejected []Rejection `json:"rejected,omitempty"`
	// Repairs counts how often the payload of Assigned was saved again since it last
	// ran. It survives whenever it matters: without the record nothing is assigned,
	// and a payload that is delivered is staged, not repaired.
	Repairs int `json:"repairs,omitempty"`
}

// A Trial counts the starts of one configuration by one build.
type Trial struct {
	// Digest is the configuration, and Build the program that started it last.
	Digest Digest `json:"digest"`
	Build  string `json:"build,omitempty"`
	// Failed counts the starts that did not end with a clean stop, and Rebooted
	// those of them after which the machine had rebooted.
	Failed   int `json:"failed,omitempty"`
	Rebooted int `json:"rebooted,omitempty"`
	// Open is set from before the configuration is decoded until its start has
	// ended; BootID is the machine's boot at that time.
	Open   bool   `json:"open,omitempty"`
	BootID string `json:"bootID,omitempty"`
	// Note is the failure that the process gave for its last failed start.
	Note string `json:"note,omitempty"`
	// Others are the starts that other builds have made, the latest last. Two builds
	// may take turns, as those of a boot loader that tries one image after the other.
	Others []Starts `json:"others,omitempty"`
}

// Starts are the starts of one configuration by another build than the last.
type Starts struct {
	// Build is that build. Failed and Rebooted count as those of a Trial.
	Build    string `json:"build,omitempty"`
	Failed   int    `json:"failed,omitempty"`
	Rebooted int    `json:"rebooted,omitempty"`
}

// A Rejection keeps one build from running one configuration.
type Rejection struct {
	// Digest is the configuration, and Build the build.
	Digest Digest `json:"digest"`
	Build  string `json:"build,omitempty"`
	// Reason and Message explain it. Time is that of the wall clock, for people.
	Reason  Reason    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time,omitzero"`
}

// Empty returns the record of a store in which nothing was ever assigned.
func Empty() Record {
	return Record{Schema: Schema, MinReader: MinReader}
}

// Encode returns r as the store keeps it.
func (r Record) Encode() ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// Parse is the inverse of Encode. It accepts what newer code wrote: of a
// record that this code must not interpret it returns the versions and, if it
// can, LKG. A record of newer code must never be taken for a damaged one, which
// would be replaced.
func Parse(text []byte) (Record, error) {
	var r Record
	err := json.Unmarshal(text, &r)
	if err != nil || r.MinReader > Schema {
		var version struct {
			Schema    int    `json:"schema"`
			MinReader int    `json:"minReader"`
			Gen       uint64 `json:"gen"`
		}
		if verErr := json.Unmarshal(text, &version); verErr != nil || version.MinReader <= Schema {
			return Record{}, fmt.Errorf("decode the record: %w", err)
		}
		r = Record{Schema: version.Schema, MinReader: version.MinReader, Gen: version.Gen}
		var refs struct {
			LKG *Ref `json:"lastKnownGood"`
		}
		if err := json.Unmarshal(text, &refs); err == nil && refs.LKG != nil && !refs.LKG.Digest.IsZero() {
			r.LKG = refs.LKG
		}
		return r, nil
	}
	if err := r.Check(); err != nil {
		return Record{}, fmt.Errorf("the record is not valid: %w", err)
	}
	return r.trimRejected(), nil
}

// Check returns an error for a record that no version of this code writes. A
// slot that holds such a record is as bad as one with a wrong checksum. Limits
// are not checked: a newer version may have raised them.
func (r Record) Check() error {
	if r.Schema < 1 || r.MinReader < 1 || r.MinReader > r.Schema {
		return fmt.Errorf("schema %d with minReader %d", r.Schema, r.MinReader)
	}
	for _, ref := range r.Refs() {
		if ref.Digest.IsZero() {
			return errors.New("a reference without a digest")
		}
	}
	if t := r.Trial; t != nil {
		if r.Assigned == nil || t.Digest != r.Assigned.Digest {
			return errors.New("a trial of a configuration that is not assigned")
		}
		for _, b := range append([]Starts{{t.Build, t.Failed, t.Rebooted}}, t.Others...) {
			if b.Failed < 0 || b.Rebooted < 0 {
				return errors.New("a negative count of starts")
			}
		}
	}
	if r.Repairs < 0 {
		return errors.New("a negative count of repairs")
	}
	return nil
}

// Refs returns the configurations whose payloads r needs.
func (r Record) Refs() []Ref {
	var refs []Ref
	for _, ref := range []*Ref{r.Assigned, r.LKG, r.Previous} {
		if ref != nil {
			refs = append(refs, *ref)
		}
	}
	return refs
}

// A Digest is the SHA-256 of a payload. The zero Digest is the built-in default.
type Digest [sha256.Size]byte

// IsZero reports whether d is the built-in default.
func (d Digest) IsZero() bool { return d == Digest{} }

// String returns d in hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts exactly 64 hexadecimal
// digits, and leaves d as it is if there is an error.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return fmt.Errorf("configcheckpoint: a digest has %d hexadecimal digits, not %d characters", hex.EncodedLen(len(d)), len(text))
	}
	var parsed Digest
	if _, err := hex.Decode(parsed[:], text); err != nil {
		return fmt.Errorf("configcheckpoint: digest: %w", err)
	}
	*d = parsed
	return nil
}

// A Ref names one configuration. The public Ref says what its fields are.
type Ref struct {
	// Digest identifies it.
	Digest Digest `json:"digest"`
	// Name, Version, Size and Time are for people.
	Name    string    `json:"name,omitempty"`
	Version string    `json:"version,omitempty"`
	Size    int       `json:"size,omitempty"`
	Time    time.Time `json:"time,omitzero"`
}

// A Reason is a public Reason. The constants are those that decisions depend on.
type Reason string

// The reasons, which the public ones explain.
const (
	DecodeFailed      Reason = "DecodeFailed"
	ValidationFailed  Reason = "ValidationFailed"
	NotAdmitted       Reason = "NotAdmitted"
	CrashLoop         Reason = "CrashLoop"
	CheckpointCorrupt Reason = "CheckpointCorrupt"
	StoreFull         Reason = "StoreFull"
	StoreReadOnly     Reason = "StoreReadOnly"
	StoreFailed       Reason = "StoreFailed"
)

// beforeRunning reports whether a reason is one for which a configuration is
// rejected before it has run.
func (r Reason) beforeRunning() bool {
	return r == DecodeFailed || r == ValidationFailed || r == NotAdmitted
}

// Transient reports whether a reason names a fault of the store that may pass while
// the process runs, so that the prevented work is worth a retry.
func (r Reason) Transient() bool {
	return r == StoreFull || r == StoreReadOnly || r == StoreFailed
}

// A Role is a public Role.
type Role string

// The roles, which the public ones explain.
const (
	Assigned      Role = "Assigned"
	LastKnownGood Role = "LastKnownGood"
	Previous      Role = "Previous"
	Default       Role = "Default"
)

// Limits on the content of a record, in bytes, so that every record fits its
// slot. TestLargestRecordFitsSlot of package configcheckpoint checks them.
const (
	MaxName     = 256
	MaxVersion  = 128
	MaxBuild    = 128
	MaxMessage  = 200
	MaxRejected = 4
	MaxOthers   = 2 // builds besides the last one whose starts are counted
)

// Tidy returns s fit for a record, a condition or a log line: valid UTF-8 on
// one line without control characters, and at most limit bytes long. Its cost does not
// grow with s, which may come from outside.
func Tidy(s string, limit int) string {
	s = s[:min(len(s), 8*limit)]
	s = strings.Map(func(c rune) rune {
		if c == utf8.RuneError || unicode.IsControl(c) || c == '\u2028' || c == '\u2029' {
			return ' '
		}
		return c
	}, s)
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	const ellipsis = "..."
	cut := limit - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}
