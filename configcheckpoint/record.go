// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The versions of the record that this code writes and the oldest code that
// may read it. A change that older code would misread raises both.
const (
	recordSchema    = 1
	recordMinReader = 1
)

// Limits on what goes into a record, in bytes, so that every record fits its
// slot. TestLargestRecordFitsSlot holds them to it.
const (
	maxName     = 256
	maxVersion  = 128
	maxBuild    = 128
	maxMessage  = 200
	maxRejected = 4
)

// A record is everything the store knows besides the payloads. It is a value:
// the functions of plan.go return a changed copy, and what its pointers and
// slices reach is never written to.
type record struct {
	Schema    int    `json:"schema"`
	MinReader int    `json:"minReader"`
	Gen       uint64 `json:"gen"`
	// Build is the program version that wrote the record, for people.
	Build string `json:"build,omitempty"`
	// Assigned is what the source wants to run; nil is the built-in default.
	Assigned *Ref `json:"assigned,omitempty"`
	// LKG is the last configuration that passed its trial.
	LKG *Ref `json:"lastKnownGood,omitempty"`
	// Previous is the one that was LKG before it.
	Previous *Ref `json:"previous,omitempty"`
	// Trial counts the starts of Assigned while it is not proven.
	Trial *trialRecord `json:"trial,omitempty"`
	// Rejected are the configurations not to run again, oldest first.
	Rejected []rejection `json:"rejected,omitempty"`
	// Healed counts how often the payload of Assigned had to be written again.
	Healed int `json:"healed,omitempty"`
}

// A trialRecord counts the starts of one configuration by one build.
type trialRecord struct {
	Digest Digest `json:"digest"`
	Build  string `json:"build,omitempty"`
	// Failed counts the starts that ended otherwise than by a clean stop, and
	// Rebooted those of them after which the machine had been booted anew.
	Failed   int `json:"failed,omitempty"`
	Rebooted int `json:"rebooted,omitempty"`
	// Open is set from before the configuration is decoded until its start has
	// ended; BootID is the machine's boot at that time.
	Open   bool   `json:"open,omitempty"`
	BootID string `json:"bootID,omitempty"`
	// Note is what the process said of its last failed start.
	Note string `json:"note,omitempty"`
}

// A rejection bars one configuration from one build.
type rejection struct {
	Digest  Digest    `json:"digest"`
	Build   string    `json:"build,omitempty"`
	Reason  Reason    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time,omitzero"`
}

// emptyRecord is the record of a store in which nothing was ever assigned.
func emptyRecord() record {
	return record{Schema: recordSchema, MinReader: recordMinReader}
}

// check returns an error for a record that no version of this code writes. A
// slot that holds one is as bad as one whose checksum is wrong.
func (r record) check() error {
	if r.Schema < 1 || r.MinReader < 1 || r.MinReader > r.Schema {
		return fmt.Errorf("schema %d with minReader %d", r.Schema, r.MinReader)
	}
	for _, ref := range r.refs() {
		if ref.Digest.IsZero() {
			return errors.New("a reference without a digest")
		}
	}
	if t := r.Trial; t != nil {
		if r.Assigned == nil || t.Digest != r.Assigned.Digest {
			return errors.New("a trial of what is not assigned")
		}
		if t.Failed < 0 || t.Rebooted < 0 {
			return errors.New("a negative count of starts")
		}
	}
	if len(r.Rejected) > maxRejected {
		return fmt.Errorf("%d rejections", len(r.Rejected))
	}
	return nil
}

// refs returns the configurations whose payloads r needs.
func (r record) refs() []Ref {
	var refs []Ref
	for _, ref := range []*Ref{r.Assigned, r.LKG, r.Previous} {
		if ref != nil {
			refs = append(refs, *ref)
		}
	}
	return refs
}

// proven reports whether the assigned configuration has passed its trial.
func (r record) proven() bool {
	return r.Assigned != nil && r.LKG != nil && r.Assigned.Digest == r.LKG.Digest
}

// rejection returns why build must not run d, and whether that is so.
func (r record) rejection(d Digest, build string) (rejection, bool) {
	for _, x := range r.Rejected {
		if x.Digest == d && x.Build == build {
			return x, true
		}
	}
	return rejection{}, false
}

// tidy returns s fit for a record, a condition or a log line: valid UTF-8 on
// one line without control characters, and at most limit bytes long.
func tidy(s string, limit int) string {
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
