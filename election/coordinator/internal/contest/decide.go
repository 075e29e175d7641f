// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package contest

import (
	"cmp"
	"time"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// Next returns the next action after a Tick at now. It changes nothing. It calls the
// strategies, which may panic.
func (c *Contest) Next(now time.Time) Decision {
	d := decider{now: now, Rules: c.rules, Contest: c}
	d.survey()
	next, about := d.next()
	switch {
	case next.Do != Wait:
	case d.spins != nil:
		next, about = Decision{Do: Unping, Why: "the candidate answers the same ping again and again"}, d.spins
	case d.garbage != nil:
		next, about = Decision{Do: Collect, Why: "the candidate has not been renewed for long"}, d.garbage
	}
	if about != nil {
		next.Name, next.UID, next.Version = about.Name, about.UID, about.Version
	}
	if next.Do == Ping {
		// A candidate answers a ping that is later than its own last renewal.
		// This one is, and any answer will be later than it, whatever the
		// clocks of the candidate and of this machine show.
		next.PingTime = about.RenewTime + 1
		// Each candidate gets a first ping that is not paced, however many are dead.
		next.first = !now.Before(about.asked.Add(2 * d.AckTimeout))
	}
	switch {
	case next.Do == Wait:
		return Decision{WakeAt: d.wakeAt}
	case now.Before(c.retryAt):
		return Decision{WakeAt: c.retryAt}
	case !next.first && c.tokensOf(now) < 1:
		return Decision{WakeAt: now.Add(time.Second / requestRate)}
	}
	next.Lease = c.lease
	if c.Holder() != "" && c.renewed {
		next.Silence = now.Sub(c.pulseAt)
	}
	return next
}

// decider is the state of one call of decide.
type decider struct {
	now time.Time
	*Rules
	*Contest

	wakeAt  time.Time
	garbage *candidate
	spins   *candidate
	ballots []spec.Ballot
}

// at adds the deadline t to wakeAt, and reports whether it has passed.
func (d *decider) at(t time.Time) bool {
	if !d.now.Before(t) {
		return true
	}
	if d.wakeAt.IsZero() || t.Before(d.wakeAt) {
		d.wakeAt = t
	}
	return false
}

// survey examines each candidate on its own.
func (d *decider) survey() {
	for _, c := range d.candidates {
		if c.Terminating {
			// The API server deletes it. A finalizer may delay that.
			d.at(d.now.Add(d.CandidateTTL))
			continue
		}
		if d.at(c.seen.Add(d.CandidateTTL)) {
			if d.at(c.retryAt) && (d.garbage == nil || cmp.Or(c.seen.Compare(d.garbage.seen), cmp.Compare(c.Name, d.garbage.Name)) < 0) {
				d.garbage = c
			}
			continue
		}
		if !c.usable() {
			continue
		}
		if c.spins() && d.at(c.retryAt) && (d.spins == nil || c.Name < d.spins.Name) {
			d.spins = c
		}
		if c.late(d.now, d.Rules) {
			continue // a candidate that may be dead has no vote
		}
		d.ballots = append(d.ballots, spec.Ballot{BinaryVersion: c.Peer.BinaryVersion, Strategy: c.Strategy})
	}
}

// takesPart reports whether a candidate counts.
func (d *decider) takesPart(c *candidate) bool {
	return c.usable() && !c.Terminating && d.now.Before(c.seen.Add(d.CandidateTTL))
}

func (d *decider) next() (Decision, *candidate) {
	if len(d.ballots) == 0 {
		return Decision{}, nil
	}
	// Of the strategies that candidates disagree about, a known one needs no other
	// component.
	name, agreed := spec.ChosenStrategy(d.ballots, func(name string) bool { return d.Strategies[name] != nil })
	strategy, known := d.Strategies[name]
	free := d.Holder() == ""
	switch needed := free || d.at(d.silentAt()); {
	case needed && !known:
		return d.canvass(name)
	case needed:
		return d.elect(strategy, free || d.at(d.expiresAt()))
	case known:
		return d.supervise(strategy, agreed)
	}
	return Decision{}, nil
}

// canvass leaves a Lease to the component that carries out an unknown strategy. Before
// that it pings the candidates that want the strategy, once in each vacancy, because a
// dead one must not prevent an election.
func (d *decider) canvass(strategy string) (Decision, *candidate) {
	if d.unread() {
		return Decision{Do: Look, Why: "the holder is silent"}, nil
	}
	var voter *candidate
	waiting := false
	for _, c := range d.candidates {
		switch {
		case c.Strategy != strategy || !d.takesPart(c) || !d.may(c):
		case d.waits(c):
			waiting = true
		case !d.answered(c) && (voter == nil || c.Name < voter.Name):
			voter = c
		}
	}
	switch {
	case voter != nil:
		return Decision{Do: Ping, Why: "the candidate wants a strategy that is carried out elsewhere"}, voter
	case d.lease == nil && !waiting:
		return Decision{Do: Announce, Strategy: strategy, Why: "another component carries out the strategy"}, nil
	}
	return Decision{}, nil
}

// answered reports whether a candidate was heard after the Lease became vacant or
// silent.
func (d *decider) answered(c *candidate) bool {
	switch {
	case d.lease == nil:
		return d.fresh(c)
	case d.Holder() == "":
		return !c.heard.Before(d.termAt)
	}
	return !c.heard.Before(d.silentAt())
}

// unread reports whether the Lease was not read since its holder fell silent.
func (d *decider) unread() bool {
	return d.Holder() != "" && d.lookedAt.Before(d.silentAt())
}

// elect finds a candidate for a Lease that is vacant, or is about to be.
func (d *decider) elect(strategy spec.Strategy, vacant bool) (Decision, *candidate) {
	best := d.best(strategy, "", d.lastResort)
	switch {
	case best == nil:
		return Decision{}, nil // until a candidate renews
	case d.unread():
		return Decision{Do: Look, Why: "the holder is silent"}, nil
	case d.waits(best):
		if other := d.unasked(strategy, best); other != nil {
			return Decision{Do: Ping, Why: "a better candidate has not answered"}, other
		}
		if other := d.standIn(strategy, best); other != nil {
			return Decision{Do: Assign, Strategy: strategy.Name(), Why: "the better candidate may be the one that has left"}, other
		}
		return Decision{}, nil
	case !d.fresh(best) && !d.prepared(best):
		return Decision{Do: Ping, Why: "the candidate is the best for a vacant lease"}, best
	case !vacant:
		return Decision{}, nil // until the lease expires
	}
	return Decision{Do: Assign, Strategy: strategy.Name(), Why: "the lease is vacant and the candidate is there"}, best
}

// supervise compares the holder of a renewed Lease with the other candidates.
func (d *decider) supervise(strategy spec.Strategy, agreed bool) (Decision, *candidate) {
	holder := d.candidates[d.Holder()]
	if holder == nil || !d.takesPart(holder) {
		// A holder without a LeaseCandidate leads until it stops.
		return Decision{}, nil
	}
	better := func(c *candidate) bool {
		return agreed && c != nil && c != holder && spec.Preempts(strategy, c.Peer, holder.Peer)
	}
	best := d.best(strategy, d.Holder(), nil)
	if name := spec.PreferredOf(d.lease); name != "" {
		preferred := d.candidates[name]
		switch {
		case preferred == best && better(best):
			return Decision{}, nil
		case !better(preferred) || !d.may(preferred):
			return Decision{Do: Retract, Why: "the preferred holder is gone, or no better than the holder"}, nil
		}
	}
	switch {
	case !better(best) || !d.at(d.offersFrom) || !d.at(d.termAt.Add(d.MinTenure)) || d.waits(best):
		return Decision{}, nil
	case !d.fresh(best):
		return Decision{Do: Ping, Why: "the candidate is better than the holder"}, best
	}
	return Decision{Do: Offer, Strategy: strategy.Name(), Why: "the candidate is better than the holder and is there"}, best
}

// best returns the best of the candidates that may be chosen, or nil. A candidate that
// is a last resort comes after all others, and after those with fewer doubts.
func (d *decider) best(strategy spec.Strategy, incumbent string, lastResort func(*candidate) bool) (best *candidate) {
	bestLast := 0
	for _, c := range d.candidates {
		if !d.takesPart(c) || !d.may(c) || !strategy.Eligible(c.Peer) {
			continue
		}
		if lastResort == nil && !d.at(c.doubtedUntil) {
			continue
		}
		last := 0
		if lastResort != nil && lastResort(c) {
			last = 1 + c.doubts
			if c == d.assignee {
				last++ // it will be doubted
			}
		}
		if best == nil || cmp.Or(cmp.Compare(last, bestLast), spec.Compare(strategy, c.Peer, best.Peer, incumbent)) < 0 {
			best, bestLast = c, last
		}
	}
	return best
}

// unasked returns a candidate to ping in addition to the best one, nil for none. At
// first only the best candidate is pinged, which is usually enough. After one has not
// answered, all others are pinged at once, so that all dead ones are detected
// together. If nobody knows who left, the second-best is pinged beside the best.
func (d *decider) unasked(strategy spec.Strategy, best *candidate) (next *candidate) {
	silent, second := false, d.leftUnseen()
	for _, c := range d.candidates {
		switch {
		case c == best || !d.takesPart(c) || !strategy.Eligible(c.Peer):
		case c.late(d.now, d.Rules):
			silent = silent || d.now.Before(c.pinged.Add(2*d.AckTimeout))
		case !d.may(c):
		case d.waits(c) || d.fresh(c):
			second = false // was pinged
		case next == nil || spec.Compare(strategy, c.Peer, next.Peer, d.Holder()) < 0:
			next = c
		}
	}
	if !silent && !second {
		return nil
	}
	return next
}

// leftUnseen reports whether the Lease was vacant when it was first observed, so that
// nobody knows which candidate has left.
func (d *decider) leftUnseen() bool { return d.lease != nil && d.Holder() == "" && d.left == "" }

// standIn returns the candidate to assign the Lease to, although the best one has a ping
// to answer: nil for none. A candidate that leaves gives the Lease away first, and its
// LeaseCandidate may stay for a while. If it has left unseen, it does not hold up the
// others for all of AckTimeout, but for five times less, which is long for an answer. A
// better candidate that is only slow is offered the Lease later.
func (d *decider) standIn(strategy spec.Strategy, best *candidate) *candidate {
	if !d.leftUnseen() || !d.at(best.pinged.Add(d.AckTimeout/5)) {
		return nil
	}
	second := d.best(strategy, "", func(c *candidate) bool { return d.waits(c) || d.lastResort(c) })
	if d.waits(second) || !d.fresh(second) {
		return nil
	}
	return second
}

// may reports whether a candidate may be chosen: it has no late ping, and requests
// about it are not backing off.
func (d *decider) may(c *candidate) bool { return !c.late(d.now, d.Rules) && d.at(c.retryAt) }

// lastResort reports whether a candidate should get a vacant Lease only if there is no
// other candidate, because it has just let the Lease expire or released it, or did not
// claim it when it was assigned to it: not long ago, or in the vacancy that lasts.
func (d *decider) lastResort(c *candidate) bool {
	if c.Name == d.Holder() && (c == d.assignee || !c.heard.After(d.pulseAt)) {
		return true
	}
	if c.Name == d.left && !c.heard.After(d.termAt) {
		return true // it leaves, and its LeaseCandidate goes later, or never
	}
	return !d.at(c.doubtedUntil) || d.unclaimed > 0 && c.doubts > 0
}

// waits reports whether a candidate has a ping to answer that is not late.
func (d *decider) waits(c *candidate) bool {
	return !d.at(c.pinged.Add(d.AckTimeout))
}

// prepared reports whether a candidate was heard after the holder fell silent. The
// answer to that ping is valid longer than others, until after the lease expires.
// Otherwise a candidate would be pinged again if the expiry is noticed a millisecond
// late.
func (d *decider) prepared(c *candidate) bool {
	return d.Holder() != "" && !c.heard.Before(d.silentAt()) && d.now.Before(c.heard.Add(2*d.AckTimeout))
}

// fresh reports whether a candidate without a ping to answer was heard within
// AckTimeout.
func (d *decider) fresh(c *candidate) bool {
	return d.now.Before(c.heard.Add(d.AckTimeout))
}
