// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// The Leases that a candidate writes. Each is what was seen last with what the
// candidate is responsible for; the resourceVersion makes the write fail where
// somebody was faster. What others have put on the Lease stays.

// editable returns a copy of the Lease as it was seen last, or one to create.
func (m *machine) editable() *coordinationv1.Lease {
	var l *coordinationv1.Lease
	if m.lease != nil {
		l = m.lease.DeepCopy()
	} else {
		l = &coordinationv1.Lease{ObjectMeta: *m.meta.DeepCopy()}
	}
	l.Annotations = maps.Clone(l.Annotations)
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	return l
}

// stamp sets and records a new renewTime: the wall clock, but never the same
// twice, because other candidates go by changes.
func (m *machine) stamp(l *coordinationv1.Lease, wall time.Time) {
	t := metav1.NewMicroTime(wall.Truncate(time.Microsecond))
	if before := l.Spec.RenewTime; before.Equal(&t) {
		t.Time = t.Add(time.Microsecond)
	}
	l.Spec.RenewTime = &t
	m.written = append(m.written[max(0, len(m.written)-maxWritten+1):], t)
}

// claimedLease begins a term.
func (m *machine) claimedLease(now instant) *coordinationv1.Lease {
	l := m.editable()
	previous := holderOf(l)
	assigned := previous == m.id && begun(l)
	switch {
	case m.lease == nil:
		l.Spec.LeaseTransitions = ptr.To[int32](0)
	case !assigned || sameTerm(pulseOf(l), m.past): // who has chosen us has counted already
		l.Spec.LeaseTransitions = ptr.To(spec.NextTransition(transitionsOf(l)))
	}
	l.Spec.HolderIdentity = ptr.To(m.id)
	l.Spec.LeaseDurationSeconds = m.seconds()
	m.stamp(l, now.wall)
	l.Spec.AcquireTime = l.Spec.RenewTime.DeepCopy()
	l.Spec.PreferredHolder = nil
	delete(l.Annotations, handoverAnnotation)
	delete(l.Annotations, offerAnnotation)
	if m.native {
		return l
	}
	l.Spec.Strategy = nil
	if previous != "" && previous != m.id {
		// It was silent for the whole of its lease, and those who come before
		// us have let their turns pass. Who is alive all the same comes back.
		delete(l.Annotations, recordKey(previous))
		for id, r := range m.records {
			if id != m.id && Compare(m.strategy, r.peer(), m.asPeer(), "") < 0 {
				delete(l.Annotations, recordKey(id))
			}
		}
	}
	if m.observer() {
		delete(l.Annotations, recordKey(m.worst().ID))
	}
	m.putRecord(now.mono, l.Annotations)
	return l
}

// renewedLease renews it.
func (m *machine) renewedLease(now instant) *coordinationv1.Lease {
	l := m.editable()
	l.Spec.LeaseDurationSeconds = m.seconds()
	m.stamp(l, now.wall)
	if m.native {
		return l
	}
	delete(l.Annotations, offerAnnotation)
	if m.term.offer != nil {
		l.Annotations[offerAnnotation] = m.term.offer.encode()
	}
	m.dropRecords(now.mono, l.Annotations)
	m.putRecord(now.mono, l.Annotations)
	return l
}

// handoverSeconds is the leaseDurationSeconds of a lease that is handed over,
// until its new holder confirms it: that long nobody leads if the new holder has
// died in the meantime. client-go's candidates look every two to five seconds.
const handoverSeconds = 5

// givenLease gives it to a candidate, or to nobody.
func (m *machine) givenLease(now instant, to string) *coordinationv1.Lease {
	l := m.editable()
	m.stamp(l, now.wall)
	l.Spec.AcquireTime = l.Spec.RenewTime.DeepCopy()
	// Not nil: controllers of the API server up to 1.37 can't do with a
	// holder that is missing.
	l.Spec.HolderIdentity = ptr.To(to)
	l.Spec.PreferredHolder = nil
	delete(l.Annotations, offerAnnotation)
	delete(l.Annotations, handoverAnnotation)
	if to == "" {
		l.Spec.LeaseDurationSeconds = ptr.To[int32](releaseSeconds)
	} else {
		l.Spec.LeaseDurationSeconds = ptr.To(min(*m.seconds(), handoverSeconds))
		l.Spec.LeaseTransitions = ptr.To(spec.NextTransition(transitionsOf(l)))
		l.Annotations[handoverAnnotation] = m.id
	}
	if !m.native {
		m.putRecord(now.mono, l.Annotations)
	}
	return l
}

// seconds returns LeaseDuration as the API has it.
func (m *machine) seconds() *int32 {
	return ptr.To(int32(m.timing.LeaseDuration / time.Second))
}

// tokenOf returns the fencing token of a term that began with this Lease.
func tokenOf(l *coordinationv1.Lease) uint64 {
	n, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// publishing is what this candidate knows of its own record.
type publishing struct {
	at        time.Duration // when it was last stored
	changedAt time.Duration // when it last said something else
	content   record        // what it then said
	beat      int
	beatAt    time.Duration // when to beat again
	missing   time.Duration // since when the Lease does not have it; 0 where it does
	retryAt   time.Duration
	jitter    float64
}

// watchedRecord is a record and since when it is the same.
type watchedRecord struct {
	record
	since time.Duration
}

// content returns what a record says, without its signs of life.
func (r record) content() record {
	r.Ack, r.Beat = "", 0
	return r
}

// lookAtRecords takes in the records on the Lease.
func (m *machine) lookAtRecords(now time.Duration) {
	var annotations map[string]string
	if m.lease != nil {
		annotations = m.lease.Annotations
	}
	if m.records == nil || !maps.Equal(annotations, m.annotations) { // as a rule a renewal changes none
		m.records, m.annotations, m.standing = records(annotations), annotations, nil
	}
	_, own := m.records[m.id]
	// A leader of ours has removed the strategy when it claimed the lease.
	strategy := m.lease != nil && m.lease.Spec.Strategy != nil && !m.mine() && holderOf(m.lease) != ""
	if !m.mixed && (m.native && len(m.records) > 0 || !m.native && strategy) {
		m.mixed = true
		m.tell(mixedRegistries{})
	}
	if m.native {
		clear(m.records)
		return
	}
	for id := range m.watched {
		if _, ok := m.records[id]; !ok {
			delete(m.watched, id)
		}
	}
	for id, r := range m.records {
		if w, ok := m.watched[id]; !ok || !reflect.DeepEqual(w.record, r) {
			m.watched[id] = watchedRecord{record: r, since: now}
		}
	}
	switch {
	case own:
		m.published.missing = 0
	case m.published.missing == 0:
		m.published.missing = now
	}
}

// standing is where this candidate stands among those that have records.
type standing struct {
	// place says that there is a place for a record of this candidate: it has
	// one, or there are less than maxRecords, or the strategy prefers it to the
	// worst.
	place bool
	// rank is how many come before it when the lease is free: maxRank at most.
	rank int
}

// stands returns where this candidate stands.
func (m *machine) stands() standing {
	if m.standing == nil {
		m.standing = &standing{place: m.findPlace(), rank: m.findRank()}
	}
	return *m.standing
}

func (m *machine) findPlace() bool {
	if _, own := m.records[m.id]; own || len(m.records) < maxRecords {
		return true
	}
	// Among equals nobody makes room: a fleet that starts together would
	// write and write until the first ones by name had a place each.
	return prefer(m.strategy, m.asPeer(), m.worst().peer()) < 0
}

func (m *machine) findRank() int {
	peers, known := m.others(holderOf(m.lease))
	if !known {
		return maxRank
	}
	return min(rank(m.strategy, m.asPeer(), peers, ""), maxRank)
}

// worst returns the record that has to make room for a better one.
func (m *machine) worst() record {
	all := sorted(m.strategy, m.records, holderOf(m.lease))
	return all[len(all)-1]
}

// wanted returns the record that the Lease should have now, and whether it
// should have one.
func (m *machine) wanted(now time.Duration) (record, bool) {
	if m.native || m.self.LastResort || m.stopping || now < m.standBackTo {
		return record{}, false
	}
	r := recordOf(m.asPeer(), m.strategy.Name())
	if last := m.published.content; last.ID != "" && now < m.published.changedAt+changeGap {
		r = last
	}
	r.Beat = m.published.beat
	if now >= m.published.beatAt {
		r.Beat++
	}
	r.Ack = m.records[m.id].Ack
	if o, ok := m.offered(now); ok {
		r.Ack = o.ID
	}
	return r, true
}

// offered returns the offer that this candidate accepts.
func (m *machine) offered(now time.Duration) (leaseOffer, bool) {
	if m.phase != standby || m.lease == nil || now < m.standBackTo || m.mine() {
		return leaseOffer{}, false
	}
	o, ok := offerOn(m.lease.Annotations)
	return o, ok && o.To == m.id
}

// publishAt returns when the record is to be written.
func (m *machine) publishAt(now time.Duration) time.Duration {
	if m.native || m.lease == nil {
		return never
	}
	present, published := m.records[m.id]
	want, wanted := m.wanted(now)
	at := time.Duration(never)
	switch {
	case !wanted && published:
		at = now
	case !wanted || !m.stands().place:
		return never
	case !published:
		at = max(m.published.missing+time.Duration(m.published.jitter*float64(publishSpread)), m.published.at+publishGap)
	case present.Ack != want.Ack:
		at = now
	default:
		if !reflect.DeepEqual(present.content(), m.fresh(now).content()) {
			at = max(m.published.at+publishGap, m.published.changedAt+changeGap)
		}
		at = min(at, m.published.beatAt)
	}
	return max(at, m.published.retryAt)
}

// fresh returns what the record would say if it could change at any time.
func (m *machine) fresh(now time.Duration) record {
	r, _ := m.wanted(max(now, m.published.changedAt+changeGap))
	return r
}

// publishMove writes the record, or removes it. It must be done by the given
// time, when there is something better to do.
func (m *machine) publishMove(now instant, by time.Duration) move {
	timeout := min(m.callTimeout, max(by-now.mono, minCall))
	want, ok := m.wanted(now.mono)
	if !ok {
		return m.withdrawMove(timeout)
	}
	changes := map[string]any{recordKey(m.id): want.encode()}
	if _, own := m.records[m.id]; !own && len(m.records) >= maxRecords {
		changes[recordKey(m.worst().ID)] = nil
	}
	return m.annotate(OpPublish, changes, timeout)
}

func (m *machine) withdrawMove(timeout time.Duration) move {
	return m.annotate(OpWithdraw, map[string]any{recordKey(m.id): nil}, timeout)
}

// annotate changes annotations, by a patch or without permission for that by
// an update of what was seen last.
func (m *machine) annotate(op Op, changes map[string]any, timeout time.Duration) move {
	if !m.noPatch {
		return move{op: op, patch: changes, timeout: timeout}
	}
	l := m.lease.DeepCopy()
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	for key, value := range changes {
		if text, ok := value.(string); ok {
			l.Annotations[key] = text
		} else {
			delete(l.Annotations, key)
		}
	}
	return move{op: op, lease: l, timeout: timeout}
}

// recordStored says that a write of this candidate was stored, which may have
// held its record.
func (m *machine) recordStored(now time.Duration) {
	own, ok := m.records[m.id]
	if !ok {
		return
	}
	p := &m.published
	if !reflect.DeepEqual(p.content, own.content()) {
		p.content, p.changedAt = own.content(), now
	}
	if p.beatAt == 0 || own.Beat != p.beat {
		p.beatAt = now + time.Duration((0.9+0.2*m.random())*float64(recordInterval))
	}
	p.at, p.beat, p.retryAt = now, own.Beat, 0
}

// putRecord puts this candidate's record among annotations that it is about to
// write for another reason.
func (m *machine) putRecord(now time.Duration, annotations map[string]string) {
	key := recordKey(m.id)
	want, ok := m.wanted(now)
	if !ok {
		delete(annotations, key)
		return
	}
	want.Ack = ""
	annotations[key] = want.encode()
}

// dropRecords removes the records that are not worth their place: of candidates
// that don't answer or have not shown themselves for long, unreadable ones, and
// the worst where there are too many.
func (m *machine) dropRecords(now time.Duration, annotations map[string]string) {
	for _, key := range orphanedRecords(annotations) {
		delete(annotations, key)
	}
	kept := maps.Clone(m.records)
	for id := range kept {
		if id != m.id && (m.suspects[id].drop || now-m.watched[id].since > recordTTL) {
			delete(kept, id)
			delete(annotations, recordKey(id))
		}
	}
	if len(kept) <= maxRecords {
		return
	}
	for _, r := range sorted(m.strategy, kept, m.id)[maxRecords:] {
		if r.ID != m.id {
			delete(annotations, recordKey(r.ID))
		}
	}
}

// The annotations of a Lease whose candidates use the registry OnLease.
const (
	// recordPrefix and a digest of the identity are the key of a record.
	recordPrefix = "candidate.election." + spec.Domain + "/"
	// offerAnnotation is what the leader offers, and to whom.
	offerAnnotation = "election." + spec.Domain + "/offer"
	// handoverAnnotation names the leader that has handed the lease to its
	// holder, after its work had returned. Without it a holder who was written
	// over another one waits until that one must have stopped.
	handoverAnnotation = "election." + spec.Domain + "/handover"
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

func (r record) ballot() spec.Ballot {
	return spec.Ballot{BinaryVersion: r.Binary, Strategy: r.Strategy}
}

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
		return Compare(s, a.peer(), b.peer(), incumbent)
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
