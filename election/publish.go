// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"maps"
	"reflect"
	"time"
)

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
