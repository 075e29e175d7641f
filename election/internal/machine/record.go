// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/kubewright/kubewright/election/internal/spec"
)

const (
	// maxRecords is the largest number of records on a Lease.
	maxRecords = 16
	// MaxRecordBytes is the size of the largest record that is read.
	MaxRecordBytes = 1024
	// recordInterval is the interval at which a record shows that its candidate is
	// alive. Only the removal of old records depends on it.
	recordInterval = 10 * time.Minute
	// recordTTL is the time after which the leader drops a record that has not
	// changed.
	recordTTL = 3*recordInterval + time.Minute
)

// record describes a candidate on the Lease. The names of its JSON form are short
// because every event of the Lease has sixteen of them.
type record struct {
	spec.Peer
	Strategy string `json:"strategy,omitempty"`
	Ack      string `json:"ack,omitempty"`  // of the offer that is accepted
	Beat     int    `json:"beat,omitempty"` // grows every recordInterval

	// Since is when this state of the record was first observed.
	Since time.Duration `json:"-"`
}

// RecordSize returns the size of the record of a candidate without an identity suffix
// and signs of life.
func RecordSize(p spec.Peer, strategy string) int {
	return len(record{Peer: p, Strategy: strategy}.encode())
}

// content returns the record without its signs of life, for comparison.
func (r record) content() string {
	r.Ack, r.Beat = "", 0
	return r.encode()
}

func (r record) encode() string {
	raw, _ := json.Marshal(r) // never fails: strings, numbers, and a year below 10,000
	return string(raw)
}

// recordKey returns the key of the annotation of an identity. It contains a digest,
// because an identity may be too long for a key or contain invalid characters.
func recordKey(id string) string {
	sum := sha256.Sum256([]byte(id))
	return recordPrefix + hex.EncodeToString(sum[:8])
}

// records returns the records among annotations by identity. It ignores values that
// are invalid or under the key of another identity.
func records(annotations map[string]string) map[string]record {
	found := make(map[string]record)
	for key, value := range annotations {
		if !strings.HasPrefix(key, recordPrefix) || len(value) > MaxRecordBytes {
			continue
		}
		var r record
		if json.Unmarshal([]byte(value), &r) == nil && r.Identity != "" && recordKey(r.Identity) == key {
			found[r.Identity] = r
		}
	}
	return found
}

// pendingOffer is an offer of the lease to a better candidate.
type pendingOffer struct {
	to     string
	id     string        // unique among the offers of this Lease; without spaces
	stored bool          // it is on the Lease
	since  time.Duration // when it was made; the acknowledgment may be observed before the answer to the write
	until  time.Duration // when it is withdrawn
}

// encode returns the value of offerAnnotation.
func (o pendingOffer) encode() string { return o.id + " " + o.to }

// doubt is about a candidate that did not answer n offers in a row. It gets no
// other offer for spec.Doubt(n), and loses the record that it had at since.
type doubt struct {
	n     int
	since time.Duration
}

// until returns the end of the doubt; the zero doubt is over.
func (d doubt) until() time.Duration {
	if d.n == 0 {
		return 0
	}
	return d.since + spec.Doubt(d.n)
}
