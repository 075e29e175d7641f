// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
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

// proven reports whether the assigned configuration has passed its trial.
func (r Record) proven() bool {
	return r.Assigned != nil && r.LKG != nil && r.Assigned.Digest == r.LKG.Digest
}

// isAssigned reports whether the configuration with digest d is assigned.
func (r Record) isAssigned(d Digest) bool { return r.Assigned != nil && r.Assigned.Digest == d }

// isGood reports whether the configuration with digest d is last known good.
func (r Record) isGood(d Digest) bool { return r.LKG != nil && r.LKG.Digest == d }

// rejection returns why build must not run d, and whether there is such a
// rejection.
func (r Record) rejection(d Digest, build string) (Rejection, bool) {
	for _, x := range r.Rejected {
		if x.Digest == d && x.Build == build {
			return x, true
		}
	}
	return Rejection{}, false
}
