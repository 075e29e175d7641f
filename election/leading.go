// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"maps"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// pendingOffer is the lease, offered to a better candidate.
type pendingOffer struct {
	leaseOffer
	stored bool // it is on the Lease
	since  time.Duration
	until  time.Duration
}

// suspicion is held against a candidate that did not answer an offer.
type suspicion struct {
	strikes int
	until   time.Duration
	drop    bool // its record is to go
}

// The least and the longest time for which a candidate is suspected.
const (
	suspectMin = time.Minute
	suspectMax = 16 * time.Minute
)

// nextLeading is what a candidate does whose work runs and whose lease is its
// own.
func (m *machine) nextLeading(now instant) step {
	wake := m.term.deadline
	if m.phase == leading {
		if at := m.succession(now.mono); at > now.mono {
			wake = min(wake, at)
		}
	}
	if m.reread {
		s := m.nextReading(now.mono)
		s.timeout = m.leaderTimeout(now.mono)
		s.wake = min(s.wake, wake)
		return s
	}
	due := m.term.renewAt
	if m.phase == leading && m.offerOutdated() || now.drift()-m.term.sent.drift() > maxDrift {
		due = now.mono
	}
	if due = max(due, m.retryAt); now.mono < due {
		return step{wake: min(wake, due, now.mono+watchDriftEvery)}
	}
	return step{move: move{op: OpRenew, lease: m.renewedLease(now), timeout: m.leaderTimeout(now.mono)}}
}

// leaderTimeout gives a call half of the time that is left, so that there is
// always time for another one.
func (m *machine) leaderTimeout(now time.Duration) time.Duration {
	left := m.term.deadline - now
	return min(m.callTimeout, max(left/2, minCall), left)
}

// offerOutdated reports whether the Lease does not show the offer that is made,
// or shows one that is not.
func (m *machine) offerOutdated() bool {
	if m.native {
		return false
	}
	value, shown := m.lease.Annotations[offerAnnotation]
	if m.term.offer == nil {
		return shown
	}
	return value != m.term.offer.encode()
}

// succession looks for a better leader. It returns when to look again.
func (m *machine) succession(now time.Duration) (again time.Duration) {
	if m.native {
		if to := preferredHolder(m.lease); to != "" && to != m.id {
			m.term.target = to
			m.drain(now, ErrSuperseded)
		}
		return never
	}
	if o := m.term.offer; o != nil {
		return m.awaitAck(now, o)
	}
	if tenured := m.term.began + m.timing.MinTenure; now < tenured {
		return tenured
	}
	peers, known := m.others("")
	if !known || !m.agreed() {
		return never
	}
	again = never
	trusted := peers[:0:0]
	for _, p := range peers {
		if s, ok := m.suspects[p.Identity]; ok && now < s.until {
			again = min(again, s.until)
			continue
		}
		trusted = append(trusted, p)
	}
	if p, ok := best(m.strategy, trusted, ""); ok && (m.self.LastResort || preempts(m.strategy, p, m.asPeer())) {
		m.offers++
		id := strconv.Itoa(int(m.term.pulse.transitions)) + "." + strconv.Itoa(m.offers)
		m.term.offer = &pendingOffer{leaseOffer: leaseOffer{To: p.Identity, ID: id}}
		return now
	}
	return again
}

// agreed reports whether all candidates of the highest version want the same
// strategy.
func (m *machine) agreed() bool {
	ballots := []ballot{{Peer: m.asPeer(), strategy: m.strategy.Name()}}
	for id, r := range m.records {
		if id != m.id {
			ballots = append(ballots, r.ballot())
		}
	}
	_, agreed := chosenStrategy(ballots)
	return agreed
}

// awaitAck waits for the answer to an offer.
func (m *machine) awaitAck(now time.Duration, o *pendingOffer) (again time.Duration) {
	if !o.stored {
		return never
	}
	r, present := m.records[o.To]
	switch {
	case present && r.Ack == o.ID:
		m.term.target = o.To
		m.closeOffer(now, true)
		m.drain(now, ErrSuperseded)
	case !present:
		m.closeOffer(now, false) // it has withdrawn
	case now >= o.until:
		s := m.suspects[o.To]
		s.until = now + min(suspectMin<<s.strikes, suspectMax)
		s.strikes = min(s.strikes+1, 10)
		s.drop = true
		maps.DeleteFunc(m.suspects, func(_ string, old suspicion) bool { return now >= old.until+suspectMax }) // long gone
		m.suspects[o.To] = s
		m.closeOffer(now, false)
	default:
		return o.until
	}
	return now
}

// offerStored says that the Lease shows what was written.
func (m *machine) offerStored(now time.Duration) {
	for id, s := range m.suspects {
		s.drop = false
		m.suspects[id] = s
	}
	o := m.term.offer
	if o == nil || o.stored || m.lease.Annotations[offerAnnotation] != o.encode() {
		return
	}
	o.stored, o.since, o.until = true, now, now+m.timing.AckTimeout
	m.tell(Offered{To: o.To})
}

// closeOffer ends the offer, if there is one.
func (m *machine) closeOffer(now time.Duration, accepted bool) {
	if o := m.term.offer; o != nil && o.stored {
		m.tell(OfferEnded{To: o.To, Accepted: accepted, Elapsed: now - o.since})
	}
	m.term.offer = nil
}

// preferredHolder returns whom a controller wants to lead.
func preferredHolder(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.PreferredHolder == nil {
		return ""
	}
	return *l.Spec.PreferredHolder
}
