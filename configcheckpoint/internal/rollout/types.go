// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package rollout decides which configuration package configcheckpoint runs, and what
// is written to its store. [State.Apply] records facts, [State.Next] returns the record that
// must be written, and the other methods return decisions. The package does no I/O.
package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

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
