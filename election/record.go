// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// The annotations of a Lease whose candidates use the registry OnLease.
const (
	// recordPrefix and a digest of the identity are the key of a record.
	recordPrefix = "candidate.election." + domain + "/"
	// offerAnnotation is what the leader offers, and to whom.
	offerAnnotation = "election." + domain + "/offer"
	// handoverAnnotation names the leader that has handed the lease to its
	// holder, after its work had returned. Without it a holder who was written
	// over another one waits until that one must have stopped.
	handoverAnnotation = "election." + domain + "/handover"
)

const (
	// maxRecords is how many records a Lease has.
	maxRecords = 16
	// maxRecordBytes is the size of the largest record that is read.
	maxRecordBytes = 1024
	// recordInterval is how often a record shows that its candidate is alive.
	// It is a matter of cleaning up, not of safety or speed.
	recordInterval = 10 * time.Minute
	// recordTTL is how long a record may stay as it is before the leader drops
	// it.
	recordTTL = 3*recordInterval + time.Minute
)

// record is what a candidate writes about itself. The names are short because
// sixteen of them are in every event of the Lease.
type record struct {
	ID         string            `json:"id"`
	Binary     string            `json:"binary,omitempty"`
	Emulation  string            `json:"emulation,omitempty"`
	Priority   int32             `json:"priority,omitempty"`
	Attributes map[string]string `json:"attrs,omitempty"`
	Strategy   string            `json:"strategy,omitempty"`
	Created    time.Time         `json:"created"`
	Ack        string            `json:"ack,omitempty"`  // of the offer that is accepted
	Beat       int               `json:"beat,omitempty"` // grows every recordInterval
}

// recordOf returns what a candidate writes about itself.
func recordOf(p Peer, strategy string) record {
	return record{
		ID: p.Identity, Binary: p.BinaryVersion, Emulation: p.EmulationVersion, Priority: p.Priority,
		Attributes: p.Attributes, Strategy: strategy, Created: p.Created,
	}
}

func (r record) peer() Peer {
	return Peer{
		Identity: r.ID, BinaryVersion: r.Binary, EmulationVersion: r.Emulation,
		Priority: r.Priority, Attributes: r.Attributes, Created: r.Created,
	}
}

func (r record) ballot() ballot { return ballot{Peer: r.peer(), strategy: r.Strategy} }

func (r record) encode() string {
	raw, err := json.Marshal(r)
	if err != nil {
		return "" // never: strings, numbers, and a year below 10,000
	}
	return string(raw)
}

// recordKey returns the annotation of an identity: a digest, as identities may
// be longer than a key and contain what a key must not.
func recordKey(id string) string {
	sum := sha256.Sum256([]byte(id))
	return recordPrefix + hex.EncodeToString(sum[:8])
}

// records returns the records among annotations by identity. What can't be
// read, or lies under the key of somebody else, is no candidate.
func records(annotations map[string]string) map[string]record {
	found := make(map[string]record)
	for key, value := range annotations {
		if !strings.HasPrefix(key, recordPrefix) || len(value) > maxRecordBytes {
			continue
		}
		var r record
		if json.Unmarshal([]byte(value), &r) == nil && r.ID != "" && recordKey(r.ID) == key {
			found[r.ID] = r
		}
	}
	return found
}

// orphanedRecords returns the keys of records that no candidate can have
// written: they would take up the place of one for ever.
func orphanedRecords(annotations map[string]string) (keys []string) {
	valid := make(map[string]bool)
	for id := range records(annotations) {
		valid[recordKey(id)] = true
	}
	for key := range annotations {
		if strings.HasPrefix(key, recordPrefix) && !valid[key] {
			keys = append(keys, key)
		}
	}
	return keys
}

// sorted returns the records with the best candidate first.
func sorted(s Strategy, all map[string]record, incumbent string) []record {
	return slices.SortedFunc(maps.Values(all), func(a, b record) int {
		return compare(s, a.peer(), b.peer(), incumbent)
	})
}

// leaseOffer is the value of offerAnnotation.
type leaseOffer struct {
	To string `json:"to"`
	ID string `json:"id"` // unique among the offers of this Lease
}

func (o leaseOffer) encode() string {
	raw, err := json.Marshal(o)
	if err != nil {
		return "" // never: two strings
	}
	return string(raw)
}

// offerOn returns the offer among annotations, if there is one that can be
// read.
func offerOn(annotations map[string]string) (leaseOffer, bool) {
	var o leaseOffer
	value, ok := annotations[offerAnnotation]
	if !ok || len(value) > maxRecordBytes || json.Unmarshal([]byte(value), &o) != nil {
		return leaseOffer{}, false
	}
	return o, o.To != "" && o.ID != ""
}
