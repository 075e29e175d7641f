// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"cmp"
	"time"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/internal/spec"
)

// An action is the next action of the Controller about a Lease.
type action string

const (
	// wait: nothing, until something changes or wakeAt.
	wait action = ""
	// look: read the Lease, because the watch may be silent and not the holder.
	look action = "look"
	// ping: ask a candidate for a sign of life.
	ping action = "ping"
	// unping: remove a ping that its candidate answers repeatedly.
	unping action = "unping"
	// assign: make a candidate the holder of a vacant Lease.
	assign action = "assign"
	// announce: create a Lease without holder, with the name of a strategy that
	// another component carries out.
	announce action = "announce"
	// offer: ask the holder to give way to a candidate.
	offer action = "offer"
	// retract: remove an offer.
	retract action = "retract"
	// collect: delete a LeaseCandidate that is no longer renewed.
	collect action = "collect"
)

// A decision is an action and its arguments.
type decision struct {
	do action
	// who is the candidate of ping, unping, assign, offer and collect.
	who *candidate
	// strategy is what assign, announce and offer write to the Lease.
	strategy string
	// wakeAt is the time to decide again without a change: the earliest of all
	// deadlines. It is zero if and only if there are no candidates.
	wakeAt time.Time
	// why is the reason, for the log.
	why string
}

// rules are the parameters of decisions that are the same for all Leases.
type rules struct {
	Config
	strategies map[string]election.Strategy // that this controller carries out, by name
}

// decide returns the next action about a Lease. It is a pure function of the observed
// state of the Lease and its candidates, and of the clock of this process. It compares
// no time from another machine with that clock.
func decide(now time.Time, r *rules, s *situation) decision {
	d := decider{now: now, rules: r, situation: s}
	d.survey()
	next := d.next()
	if next.do == wait && d.garbage != nil {
		next = decision{do: collect, who: d.garbage, why: "the candidate has not been renewed for long"}
	}
	if next.do == wait {
		next.wakeAt = d.wakeAt
	}
	return next
}

// decider is the state of one call of decide.
type decider struct {
	now time.Time
	*rules
	*situation

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
		if c.terminating {
			// The API server deletes it. A finalizer may delay that.
			d.at(d.now.Add(d.CandidateTTL))
			continue
		}
		if d.at(c.seen.Add(d.CandidateTTL)) {
			if d.at(c.retryAt) && (d.garbage == nil || cmp.Or(c.seen.Compare(d.garbage.seen), cmp.Compare(c.key.Name, d.garbage.key.Name)) < 0) {
				d.garbage = c
			}
			continue
		}
		if !c.usable() {
			continue
		}
		if c.spins() && d.at(c.retryAt) && (d.spins == nil || c.key.Name < d.spins.key.Name) {
			d.spins = c
		}
		if c.late(d.now, d.rules) {
			continue // a candidate that may be dead has no vote
		}
		d.ballots = append(d.ballots, spec.Ballot{BinaryVersion: c.peer.BinaryVersion, Strategy: c.strategy})
	}
}

// takesPart reports whether a candidate counts.
func (d *decider) takesPart(c *candidate) bool {
	return c.usable() && !c.terminating && d.now.Before(c.seen.Add(d.CandidateTTL))
}

func (d *decider) next() decision {
	if d.spins != nil {
		return decision{do: unping, who: d.spins, why: "the candidate answers the same ping again and again"}
	}
	if len(d.ballots) == 0 {
		return decision{}
	}
	// Of the strategies that candidates disagree about, a known one needs no other
	// component.
	name, agreed := spec.ChosenStrategy(d.ballots, func(name string) bool { return d.strategies[name] != nil })
	strategy, known := d.strategies[name]
	free := d.holder() == ""
	switch needed := free || d.at(d.silentAt(d.rules)); {
	case needed && !known:
		return d.canvass(name)
	case needed:
		return d.elect(strategy, free || d.at(d.expiresAt(d.rules)))
	case known:
		return d.supervise(strategy, agreed)
	}
	return decision{}
}

// canvass leaves a Lease to the component that carries out an unknown strategy. Before
// that it pings the candidates that want the strategy, once in each vacancy, because a
// dead one must not prevent an election.
func (d *decider) canvass(strategy string) decision {
	if d.unread() {
		return decision{do: look, why: "the holder is silent"}
	}
	var voter *candidate
	waiting := false
	for _, c := range d.candidates {
		switch {
		case c.strategy != strategy || !d.takesPart(c) || !d.may(c):
		case d.waits(c):
			waiting = true
		case !d.answered(c) && (voter == nil || c.key.Name < voter.key.Name):
			voter = c
		}
	}
	switch {
	case voter != nil:
		return decision{do: ping, who: voter, why: "the candidate wants a strategy that is carried out elsewhere"}
	case d.lease == nil && !waiting:
		return decision{do: announce, strategy: strategy, why: "another component carries out the strategy"}
	}
	return decision{}
}

// answered reports whether a candidate was heard after the Lease became vacant or
// silent.
func (d *decider) answered(c *candidate) bool {
	switch {
	case d.lease == nil:
		return d.fresh(c)
	case d.holder() == "":
		return !c.heard.Before(d.termAt)
	}
	return !c.heard.Before(d.silentAt(d.rules))
}

// unread reports whether the Lease was not read since its holder fell silent.
func (d *decider) unread() bool {
	return d.holder() != "" && d.lookedAt.Before(d.silentAt(d.rules))
}

// elect finds a candidate for a Lease that is vacant, or is about to be.
func (d *decider) elect(strategy election.Strategy, vacant bool) decision {
	best := d.best(strategy, "", d.lastResort)
	switch {
	case best == nil:
		return decision{} // until a candidate renews
	case d.unread():
		return decision{do: look, why: "the holder is silent"}
	case d.waits(best):
		if other := d.unasked(strategy); other != nil {
			return decision{do: ping, who: other, why: "a better candidate has not answered"}
		}
		return decision{}
	case !d.fresh(best) && !d.prepared(best):
		return decision{do: ping, who: best, why: "the candidate is the best for a vacant lease"}
	case !vacant:
		return decision{} // until the lease expires
	}
	return decision{do: assign, who: best, strategy: strategy.Name(), why: "the lease is vacant and the candidate is there"}
}

// supervise compares the holder of a renewed Lease with the other candidates.
func (d *decider) supervise(strategy election.Strategy, agreed bool) decision {
	holder := d.candidates[d.holder()]
	if holder == nil || !d.takesPart(holder) {
		// A holder without a LeaseCandidate leads until it stops.
		return decision{}
	}
	better := func(c *candidate) bool {
		return agreed && c != nil && c != holder && election.Preempts(strategy, c.peer, holder.peer)
	}
	best := d.best(strategy, d.holder(), nil)
	if name := spec.PreferredOf(d.lease); name != "" {
		preferred := d.candidates[name]
		switch {
		case preferred == best && better(best):
			return decision{}
		case !better(preferred) || !d.may(preferred):
			return decision{do: retract, why: "the preferred holder is gone, or no better than the holder"}
		}
	}
	switch {
	case !better(best) || !d.at(d.offersFrom) || !d.at(d.termAt.Add(d.MinTenure)) || d.waits(best):
		return decision{}
	case !d.fresh(best):
		return decision{do: ping, who: best, why: "the candidate is better than the holder"}
	}
	return decision{do: offer, who: best, strategy: strategy.Name(), why: "the candidate is better than the holder and is there"}
}

// best returns the best of the candidates that may be chosen, or nil. A candidate that
// is a last resort comes after all others.
func (d *decider) best(strategy election.Strategy, incumbent string, lastResort func(*candidate) bool) (best *candidate) {
	bestIsLast := false
	for _, c := range d.candidates {
		if !d.takesPart(c) || !d.may(c) || !election.Eligible(strategy, c.peer) {
			continue
		}
		last := lastResort != nil && lastResort(c)
		if lastResort == nil && !d.at(c.doubtedUntil) {
			continue
		}
		if best == nil || cmp.Or(spec.TrueFirst(bestIsLast, last), election.Compare(strategy, c.peer, best.peer, incumbent)) < 0 {
			best, bestIsLast = c, last
		}
	}
	return best
}

// unasked returns a candidate to ping in addition to the best one, nil for none. At
// first only the best candidate is pinged, which is usually enough. After one has not
// answered, all others are pinged at once, so that all dead ones are detected
// together.
func (d *decider) unasked(strategy election.Strategy) (next *candidate) {
	silent := false
	for _, c := range d.candidates {
		switch {
		case !d.takesPart(c) || !election.Eligible(strategy, c.peer):
		case c.late(d.now, d.rules):
			silent = silent || d.now.Before(c.pinged.Add(2*d.AckTimeout))
		case d.may(c) && !d.waits(c) && !d.fresh(c) && (next == nil || election.Compare(strategy, c.peer, next.peer, d.holder()) < 0):
			next = c
		}
	}
	if !silent {
		return nil
	}
	return next
}

// may reports whether a candidate may be chosen: it has no late ping, and requests
// about it are not backing off.
func (d *decider) may(c *candidate) bool { return !c.late(d.now, d.rules) && d.at(c.retryAt) }

// lastResort reports whether a candidate should get a vacant Lease only if there is no
// other candidate, because it has just let the Lease expire, or did not claim it after
// a recent assignment.
func (d *decider) lastResort(c *candidate) bool {
	if c.peer.Identity == d.holder() && (c == d.assignee || !c.heard.After(d.pulseAt)) {
		return true
	}
	return !d.at(c.doubtedUntil)
}

// waits reports whether a candidate has a ping to answer that is not late.
func (d *decider) waits(c *candidate) bool {
	return !c.pinged.IsZero() && !d.at(c.pinged.Add(d.AckTimeout))
}

// prepared reports whether a candidate was heard after the holder fell silent. The
// answer to that ping is valid longer than others, until after the lease expires.
// Otherwise a candidate would be pinged again if the expiry is noticed a millisecond
// late.
func (d *decider) prepared(c *candidate) bool {
	return d.holder() != "" && !c.heard.Before(d.silentAt(d.rules)) && d.now.Before(c.heard.Add(2*d.AckTimeout))
}

// fresh reports whether a candidate without a ping to answer was heard within
// ackTimeout.
func (d *decider) fresh(c *candidate) bool {
	return !c.heard.IsZero() && d.now.Before(c.heard.Add(d.AckTimeout))
}
