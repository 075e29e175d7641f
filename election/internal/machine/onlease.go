// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// onLease is the registry in the annotations of the Lease. The leader chooses.
type onLease struct {
	*Machine

	records     map[string]record // on the Lease, by identity
	annotations map[string]string // from which records was read
	own         publishing
	mixed       bool // other candidates use the other registry

	// Invariant: only a candidate that holds the lease offers it.
	offer     *pendingOffer
	sentOffer *pendingOffer // in the last renewal that was stored
	doubts    map[string]doubt
}

// publishing is the state of this candidate's own record.
type publishing struct {
	at      time.Duration // when it was last stored
	beat    int           // the last Beat that was stored
	beatAt  time.Duration // when Beat must grow
	retryAt time.Duration // the record is not written before
}

func (r *onLease) observed(now time.Duration) {
	var annotations map[string]string
	if r.lease != nil {
		annotations = r.lease.Annotations
		// A leader that uses OnLease has removed the strategy with its claim.
		if r.lease.Spec.Strategy != nil && r.heldByAnother() && !r.mixed {
			r.mixed = true
			r.tell(MixedRegistries{})
		}
	}
	if r.records != nil && maps.Equal(annotations, r.annotations) { // true for most renewals
		r.annotations = annotations // one map instead of two: the other Lease is gone
		return
	}
	known, before := r.records, r.annotations
	r.records, r.annotations = records(annotations), annotations
	for id, rec := range r.records {
		rec.Since = known[id].Since
		if key := recordKey(id); before[key] != annotations[key] {
			rec.Since = now
		}
		r.records[id] = rec
	}
	_, had := known[r.ID]
	if !r.published() && (had || known == nil) {
		r.postpone(now + time.Duration(r.Random()*float64(publishSpread)))
	}
}

// observer reports whether the Lease has no room for a record of this candidate.
func (r *onLease) observer() bool {
	return r.lease != nil && !r.self.LastResort && !r.placed()
}

// turn returns a time by the rank of this candidate.
func (r *onLease) turn() time.Duration {
	peers, chosen, _ := r.others(r.pulse.Holder)
	better := 0
	for _, p := range peers {
		if spec.Compare(r.Strategy, p, r.asPeer(), "") < 0 {
			better++
		}
	}
	if better >= MaxRank || !chosen || r.self.LastResort || r.pulseAt < r.standBackTo || r.observer() {
		return time.Duration((MaxRank - r.draw) * float64(Stagger))
	}
	return time.Duration(better) * Stagger
}

// others returns the candidates with records, without this one and except. chosen
// reports whether the strategy of this candidate is the one to follow, agreed
// whether all candidates of the highest version want the same one.
func (r *onLease) others(except string) (peers []spec.Peer, chosen, agreed bool) {
	ballots := []spec.Ballot{{BinaryVersion: r.self.BinaryVersion, Strategy: r.strategy}}
	for id, rec := range r.records {
		if id != r.ID && id != except {
			peers = append(peers, rec.Peer)
			ballots = append(ballots, spec.Ballot{BinaryVersion: rec.BinaryVersion, Strategy: rec.Strategy})
		}
	}
	name, agreed := spec.ChosenStrategy(ballots, func(string) bool { return false })
	return peers, name == r.strategy, agreed
}

// weigh offers the lease to a better candidate.
func (r *onLease) weigh(now time.Duration) {
	if r.offer != nil {
		r.awaitAck(now, r.offer)
		return
	}
	peers, chosen, agreed := r.others("")
	if !r.alarm.due(now, r.term.began+r.MinTenure) || !chosen || !agreed {
		return
	}
	peers = slices.DeleteFunc(peers, func(p spec.Peer) bool {
		return !r.Strategy.Eligible(p) || !r.alarm.due(now, r.doubts[p.Identity].until())
	})
	if len(peers) == 0 {
		return
	}
	best := slices.MinFunc(peers, func(p, q spec.Peer) int { return spec.Compare(r.Strategy, p, q, "") })
	if r.self.LastResort || spec.Preempts(r.Strategy, best, r.asPeer()) {
		r.offer = &pendingOffer{to: best.Identity, id: fmt.Sprintf("%d.%d", r.term.pulse.Transitions, now), since: now}
	}
}

// awaitAck waits for the answer to an offer.
func (r *onLease) awaitAck(now time.Duration, o *pendingOffer) {
	rec, present := r.records[o.to]
	switch {
	case !present:
		r.ended(now, false) // it has withdrawn
	case !o.stored:
	case rec.Ack == o.id:
		r.term.target = o.to
		r.ended(now, true)
		r.becomeDraining(now, Superseded)
	case r.alarm.due(now, o.until):
		maps.DeleteFunc(r.doubts, func(_ string, d doubt) bool { return now >= d.until()+spec.Doubt(math.MaxInt) }) // long gone
		r.doubts[o.to] = doubt{n: r.doubts[o.to].n + 1, since: now}
		r.ended(now, false)
	}
}

// urgent reports whether there is an offer to store or to withdraw.
func (r *onLease) urgent() bool { return r.offer != r.sentOffer }

// ended ends the offer, if there is one.
func (r *onLease) ended(now time.Duration, accepted bool) {
	if o := r.offer; o != nil && o.stored {
		r.tell(OfferEnded{To: o.to, Accepted: accepted, Elapsed: now - o.since})
	}
	r.offer = nil
}

// heir returns "" for a candidate that has withdrawn while the work came to its end.
func (r *onLease) heir(to string) string {
	if _, there := r.records[to]; !there {
		return ""
	}
	return to
}

func (r *onLease) write(now time.Duration, op Op, l *coordinationv1.Lease) {
	switch op {
	case Claim:
		l.Spec.Strategy = nil
		previous := r.pulse.Holder
		r.dropRecords(now, l.Annotations, func(rec record) bool {
			// The holder was silent for its whole lease, and better candidates let
			// their turns pass. A live one publishes its record again.
			return r.heldByAnother() && (rec.Identity == previous || spec.Compare(r.Strategy, rec.Peer, r.asPeer(), "") < 0)
		})
	case Renew:
		delete(l.Annotations, offerAnnotation)
		if r.offer != nil {
			l.Annotations[offerAnnotation] = r.offer.encode()
		}
		r.dropRecords(now, l.Annotations, func(rec record) bool {
			d, ok := r.doubts[rec.Identity]
			return ok && rec.Since <= d.since
		})
	}
	r.describe(now, l)
}

// describe sets this candidate's record, or removes it.
func (r *onLease) describe(now time.Duration, l *coordinationv1.Lease) {
	key := recordKey(r.ID)
	if want, ok := r.wanted(now); ok {
		l.Annotations[key] = want.encode()
	} else {
		delete(l.Annotations, key)
	}
}

// dropRecords removes the records of other candidates that are silent or have not
// changed for recordTTL, those that can't be read, and the worst of more than
// maxRecords. Only a leader, or a candidate that claims the lease, drops records.
func (r *onLease) dropRecords(now time.Duration, annotations map[string]string, silent func(record) bool) {
	keep := map[string]bool{recordKey(r.ID): true}
	byRank := func(a, b record) int { return spec.Compare(r.Strategy, a.Peer, b.Peer, r.ID) }
	for _, rec := range slices.SortedFunc(maps.Values(r.records), byRank) {
		if len(keep) < maxRecords && !silent(rec) && now-rec.Since <= recordTTL {
			keep[recordKey(rec.Identity)] = true
		}
	}
	maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasPrefix(key, recordPrefix) && !keep[key] })
}

func (r *onLease) stored(now time.Duration, op Op) {
	switch op {
	case Claim:
		r.doubts = make(map[string]doubt)
		r.offer, r.sentOffer = nil, nil
		r.recordStored(now)
	case Renew:
		r.renewalStored(now)
	case Publish, Withdraw:
		r.recordWritten(now, op)
	}
}

// renewalStored updates the offer. The API server may have stored the renewal without it,
// because of a webhook. Then the next renewal repeats it.
func (r *onLease) renewalStored(now time.Duration) {
	r.recordStored(now)
	o := r.offer
	r.sentOffer = o
	if o == nil || o.stored || r.lease.Annotations[offerAnnotation] != o.encode() {
		return
	}
	o.stored, o.until = true, now+r.AckTimeout
	r.tell(Offered{To: o.to})
}

// placed reports whether the Lease has room for a record of this candidate. A full
// Lease has room if the strategy prefers this candidate to one of the records.
// Equal candidates do not displace each other, or a fleet that starts together
// would not come to rest.
func (r *onLease) placed() bool {
	if r.published() || len(r.records) < maxRecords {
		return true
	}
	for _, rec := range r.records {
		if spec.CompareUntied(r.Strategy, r.asPeer(), rec.Peer) < 0 {
			return true
		}
	}
	return false
}

// wanted returns the record that the Lease should have now, and whether it
// should have one.
func (r *onLease) wanted(now time.Duration) (record, bool) {
	if r.self.LastResort || r.stopping || now < r.standBackTo || r.declines(now) {
		return record{}, false
	}
	rec := record{Peer: r.asPeer(), Strategy: r.strategy}
	rec.Beat = r.own.beat
	if now >= r.own.beatAt {
		rec.Beat++
	}
	if r.phase == Standby {
		rec.Ack = r.records[r.ID].Ack
	}
	rec.Ack = cmp.Or(r.offered(), rec.Ack)
	return rec, true
}

// offered returns the id of the offer that this candidate accepts, "" for none.
func (r *onLease) offered() string {
	if r.lease == nil || r.mine() {
		return ""
	}
	id, to, _ := strings.Cut(r.lease.Annotations[offerAnnotation], " ")
	if to != r.ID {
		return ""
	}
	return id
}

// declines reports whether this candidate withdraws because it can't take the lease that it is
// offered: a leader before the present one, which it lost sight of, may still lead.
func (r *onLease) declines(now time.Duration) bool {
	return r.phase == Standby && now < r.base && r.offered() != ""
}

func (r *onLease) published() bool {
	_, there := r.records[r.ID]
	return there
}

func (r *onLease) publishAt(now time.Duration) (time.Duration, Op) {
	if r.lease == nil {
		return Never, ""
	}
	present, published := r.records[r.ID]
	want, wanted := r.wanted(now)
	at, op := r.own.beatAt, Publish
	switch {
	case !r.placed(), !wanted && !published:
		return Never, ""
	case !wanted:
		at, op = now, Withdraw
	case published && present.Ack != want.Ack:
		at = now
	case !published:
		at = r.own.at + publishGap
	case present.content() != want.content():
		at = min(at, r.own.at+changeGap)
	}
	return max(at, r.own.retryAt), op
}

// recordWritten updates r.own after the record was written or withdrawn.
func (r *onLease) recordWritten(now time.Duration, op Op) {
	switch {
	case op == Publish && r.published():
		r.recordStored(now)
	case op == Withdraw && !r.published():
		r.postpone(r.base) // another offer would be declined, too
	case op == Publish, op == Withdraw && r.published():
		// Another component, such as a webhook, alters writes.
		r.own.retryAt = now + changeGap
		if r.stopping {
			r.retryAt = now + StandbyRetry
		}
	}
}

func (r *onLease) postpone(until time.Duration) { r.own.retryAt = max(r.own.retryAt, until) }

// recordStored updates r.own after a successful write that may have contained the
// record.
func (r *onLease) recordStored(now time.Duration) {
	rec, ok := r.records[r.ID]
	if !ok {
		return
	}
	p := &r.own
	if rec.Beat != p.beat {
		p.beatAt = now + time.Duration((0.9+0.2*r.Random())*float64(recordInterval))
	}
	p.at, p.beat, p.retryAt = now, rec.Beat, 0
}

func (r *onLease) inquiry() string                  { return "" }
func (r *onLease) inquired(time.Duration, Inquired) {}

func (r *onLease) check() error {
	if r.offer != nil && !r.holds() {
		return errors.New("only a candidate that holds the lease offers it")
	}
	return nil
}

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
