// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package contest decides what a coordinator does next about one Lease.
//
// [Contest.Apply] records facts, [Contest.Next] returns the next action, and
// [Contest.Check] returns which invariant is broken. All times come from the clock of this
// process, and are never compared with times from another machine. The package reads no
// clock and sends no request.
package contest

import (
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// A Contest is the observed state of a Lease and its candidates. It is not safe for
// concurrent use.
type Contest struct {
	rules *Rules

	// The Lease.
	//
	// Invariant: a term did not begin after its last renewal.
	// Invariant: the assignee is a candidate and holds the Lease.
	lease      *coordinationv1.Lease // nil: there is none; never modified
	pulseAt    time.Time             // when a renewal was last observed, or the Lease was first
	renewed    bool                  // the Lease was observed before that renewal
	duration   spec.Duration         // of the Lease at that time
	termAt     time.Time             // when the present term was first observed
	lookedAt   time.Time             // when the Lease was last read
	buried     types.UID             // of the last Lease that was deleted; "" for none
	offersFrom time.Time             // of Tick
	// assignee is the candidate that was given the Lease and has not renewed it yet:
	// this controller assigned it, or the holder handed it to the preferred candidate.
	assignee *candidate
	// left is who held the Lease before it became empty; "" if it has a holder.
	left string
	// unclaimed is the number of assignees in a row that did not claim the Lease.
	unclaimed int

	candidates map[string]*candidate

	// The requests.
	//
	// Invariant: there are failures if and only if an action fails.
	failing  Do  // the action that failed last; Wait for none
	failures int // in a row
	retryAt  time.Time
	tokens   float64 // of the pace
	tokensAt time.Time
}

// candidate is a LeaseCandidate with its observed history.
//
// Invariant: a candidate with a ping to answer considers it unanswered.
// Invariant: a sign of life was seen when it was heard.
type candidate struct {
	Candidate
	answered int64 // the PingTime that it has answered

	seen   time.Time // when it was first observed, or its last renewal or a restored one was
	heard  time.Time // when its last renewal or its creation was observed; zero for never
	pinged time.Time // since when it has a ping to answer; zero for none
	missed bool      // the late ping was reported
	asked  time.Time // when this controller last sent it a ping

	doubts       int       // times in a row that it did not claim the Lease
	doubtedUntil time.Time // until then it is a last resort
	retryAt      time.Time // no request about it is sent before
	refusals     int
	reported     bool // that it is invalid
}

// usable reports whether the candidate can be considered.
func (c *candidate) usable() bool { return c.Invalid == nil && c.RenewTime != 0 }

// open reports whether the candidate considers its ping unanswered.
func (c *candidate) open() bool { return c.PingTime > c.RenewTime }

// spins reports whether the candidate has answered a ping and still considers it
// unanswered, because its clock is behind that of the coordinator that pinged. Such a
// candidate answers repeatedly.
func (c *candidate) spins() bool { return c.open() && c.PingTime == c.answered }

// late reports whether the candidate has left a ping unanswered.
func (c *candidate) late(now time.Time, r *Rules) bool {
	return !c.pinged.IsZero() && !now.Before(c.pinged.Add(r.AckTimeout))
}

// doubt makes c the last resort for a while, because it did not claim a Lease that
// was assigned or handed to it.
func (c *candidate) doubt(now time.Time) {
	c.doubts++
	c.doubtedUntil = now.Add(spec.Doubt(c.doubts))
}

// New returns the state of a Lease about which nothing is known.
func New(rules *Rules) *Contest {
	return &Contest{rules: rules, candidates: map[string]*candidate{}, tokens: requestBurst}
}

// Has reports whether there is a candidate with that name.
func (c *Contest) Has(name string) bool { return c.candidates[name] != nil }

// Empty reports whether there are no candidates.
func (c *Contest) Empty() bool { return len(c.candidates) == 0 }

// Failures returns the number of requests in a row that failed.
func (c *Contest) Failures() int { return c.failures }

// Failing reports whether requests about the Lease or one of its candidates fail.
func (c *Contest) Failing() bool {
	for _, known := range c.candidates {
		if known.refusals > 0 {
			return true
		}
	}
	return c.failures > 0
}

// Holder returns the holder of the Lease, "" for none.
func (c *Contest) Holder() string { return spec.HolderOf(c.lease) }

// expiresAt returns the time at which the Lease expires without another renewal.
//
// An assignee that did not claim it in time may wait for a leader that it might have
// missed, because it can't watch the Lease, and each assignment that it reads begins that
// wait again. The next assignee may wait as long, so it has twice the duration. It has no
// more than that, because other candidates wait for its turn to end. The last resort has
// twice as long as the assignee before, up to sixteen durations.
func (c *Contest) expiresAt() time.Time {
	duration := c.duration.Longest()
	if c.assignee != nil {
		most := 1
		if c.assignee.doubts > 0 {
			most = 4
		}
		duration <<= min(c.unclaimed, most)
	}
	return c.pulseAt.Add(duration)
}

// silentAt returns the time from which a holder without a renewal counts as silent.
// It is early enough to ping a candidate before the Lease expires.
func (c *Contest) silentAt() time.Time {
	return c.expiresAt().Add(-min(c.rules.AckTimeout, c.duration.Longest()/3))
}

// Apply updates c from a fact.
func (c *Contest) Apply(now time.Time, e Event) (effects Effects) {
	switch e := e.(type) {
	case Tick:
		c.offersFrom = e.OffersFrom
		for name, known := range c.candidates {
			if !known.missed && known.late(now, c.rules) {
				known.missed = true
				effects.Silent = append(effects.Silent, name)
			}
		}
	case Idle:
		if c.Holder() != "" && now.Before(c.silentAt()) {
			c.failing, c.failures = Wait, 0 // the Lease is held and renewed
		}
	case LeaseSeen:
		// An older one was already observed, for example in the answer to a write.
		if c.lease == nil || !isSeen(e.Lease.ResourceVersion, c.lease.ResourceVersion) {
			effects.Decide = c.observe(now, e.Lease)
			if c.isBuried(e.Lease) {
				c.buried = "" // the API server was restored from a backup
			}
		}
	case LeaseGone:
		if c.lease != nil && c.lease.UID == e.UID { // else it was re-created
			c.buried = e.UID
			c.observe(now, nil)
			effects.Decide = true
		}
	case CandidateSeen:
		if known := c.candidates[e.Candidate.Name]; known == nil || known.UID != e.Candidate.UID || !isSeen(e.Candidate.Version, known.Version) {
			effects = Effects{Decide: true, Invalid: c.admit(now, e.Candidate, e.Fresh)}
		}
	case CandidateGone:
		effects.Decide = c.dismiss(e.Name, e.UID)
	case Sent:
		c.sent(now, e.Decision)
	case Answered:
		c.answered(now, e)
	case Concluded:
		c.concluded(now, e)
	}
	return effects
}

// isSeen reports whether a version is the known one, or older.
func isSeen(version, known string) bool {
	return version == known || spec.Older(version, known)
}

// observe updates c from a Lease that was observed at now, nil for none. It reports
// whether a decision is needed. A renewal in time needs none.
func (c *Contest) observe(now time.Time, lease *coordinationv1.Lease) bool {
	before, silent := c.lease, !now.Before(c.silentAt())
	c.lease = lease
	if lease == nil {
		c.assignee = nil
		return true
	}
	was, is := spec.PulseOf(before), spec.PulseOf(lease)
	newTerm := !is.SameTerm(was)
	if newTerm {
		if c.assignee != nil && silent {
			c.assignee.doubt(now)
			c.unclaimed++
		}
		c.termAt, c.assignee = now, nil
		if c.left = ""; is.Holder == "" {
			c.left = was.Holder
		}
		if is.Holder == spec.PreferredOf(before) {
			c.assignee = c.candidates[is.Holder] // the claim follows, or was missed
		}
	}
	renewed, believed := is != was, c.duration
	if renewed {
		c.pulseAt, c.renewed = now, before != nil
		c.duration.See(before, lease, c.rules.LeaseDuration)
	}
	if renewed && !newTerm {
		c.unclaimed = 0
		if c.assignee != nil {
			c.assignee.doubts, c.assignee = 0, nil // it has claimed the Lease
		}
	}
	return newTerm || renewed && silent && was.Holder != "" || spec.PreferredOf(before) != spec.PreferredOf(lease) || believed.Longest() != c.duration.Longest()
}

// admit updates c from a LeaseCandidate that was observed at now. fresh means that it
// was created just now. It returns why the candidate can't be considered, once.
func (c *Contest) admit(now time.Time, obj Candidate, fresh bool) error {
	known := c.candidates[obj.Name]
	switch {
	case known == nil || known.UID != obj.UID:
		c.forget(known)
		known = &candidate{seen: now}
		c.candidates[obj.Name] = known
		if fresh {
			known.heard = now
		}
	case obj.RenewTime != known.RenewTime && !spec.Older(obj.Version, known.Version):
		// Not a renewal that a restored backup shows again.
		known.seen, known.heard, known.pinged = now, now, time.Time{}
		known.answered = known.PingTime
	case obj.RenewTime != known.RenewTime:
		// Whether it lives is not known, and neither that it has not renewed since: events
		// have lower versions after the restore, too, and were taken for old ones.
		known.seen = now
	}
	known.Candidate = obj
	switch {
	case !known.open() || known.spins():
		known.pinged = time.Time{}
	case known.pinged.IsZero():
		known.pinged, known.missed = now, false // by this coordinator, now or before a restart, or by another one
	}
	first := !known.reported
	known.reported = obj.Invalid != nil
	if !first {
		return nil
	}
	return obj.Invalid
}

// dismiss removes a candidate. It reports whether it was one.
func (c *Contest) dismiss(name string, uid types.UID) bool {
	known := c.candidates[name]
	if known == nil || known.UID != uid {
		return false
	}
	c.forget(known)
	delete(c.candidates, name)
	return true
}

// forget makes sure that a candidate that no longer exists is not the assignee.
func (c *Contest) forget(known *candidate) {
	if c.assignee == known {
		c.assignee = nil
	}
}

// sent updates c after a request was sent.
func (c *Contest) sent(now time.Time, d Decision) {
	if !d.first {
		c.tokens, c.tokensAt = c.tokensOf(now)-1, now
	}
	if known := c.candidates[d.Name]; known != nil && d.Do == Ping {
		known.asked = now
	}
}

// tokensOf returns the number of requests that the pace allows now.
func (c *Contest) tokensOf(now time.Time) float64 {
	return min(requestBurst, c.tokens+now.Sub(c.tokensAt).Seconds()*requestRate)
}

// answered updates c from the answer to a request.
//
// The result of a GET counts even if its version is lower, because the API server may
// have been restored from a backup, unless the watch has delivered another object in
// the meantime. The answer to a write may come after the watch has delivered that the
// object was deleted, which no other event would tell.
func (c *Contest) answered(now time.Time, e Answered) {
	known := c.candidates[e.To.Name]
	if e.To.Do.OfCandidate() {
		got := e.Candidate
		switch {
		case e.Gone:
			c.dismiss(e.To.Name, e.To.UID)
		case got == nil, known == nil:
		case e.Read && known.Version == e.To.Version, !isSeen(got.Version, known.Version):
			c.admit(now, *got, false)
		}
		return
	}
	if e.Read {
		c.lookedAt = now
	}
	asKnown := e.Read && c.lease == e.To.Lease
	if asKnown || e.Lease != nil && !c.isBuried(e.Lease) && (c.lease == nil || !isSeen(e.Lease.ResourceVersion, c.lease.ResourceVersion)) {
		c.observe(now, e.Lease)
	}
	if e.To.Do == Assign && !e.Read && c.Holder() == e.To.Name {
		c.assignee = known
	}
}

// isBuried reports whether the Lease is the one that was deleted last.
func (c *Contest) isBuried(lease *coordinationv1.Lease) bool {
	return c.buried != "" && lease.UID == c.buried
}

// concluded schedules the next request after the result of one.
func (c *Contest) concluded(now time.Time, e Concluded) {
	known := c.candidates[e.To.Name]
	switch {
	case e.Result == OK:
		if c.failing == e.To.Do {
			c.failing, c.failures = Wait, 0
		}
		if known != nil {
			known.refusals = 0
		}
		return
	case e.Result == Refused && e.To.Do.OfCandidate() && known != nil:
		known.refusals++
		known.retryAt = now.Add(spec.Retry(known.refusals, RefusedRetry, c.rules.Random(), e.RetryAfter))
		return // another candidate may be elected
	case c.failing != e.To.Do:
		c.failing, c.failures = e.To.Do, 0
	}
	c.failures++
	limit, failures := FailedRetry, c.failures
	switch e.Result {
	case Refused, Unauthorized:
		limit = RefusedRetry
	case Conflict:
		failures-- // the object was read again, so the first repetition need not wait
	}
	until := now.Add(spec.Retry(failures, limit, c.rules.Random(), e.RetryAfter))
	if e.Result == Conflict && e.To.Do.OfCandidate() && known != nil {
		known.retryAt = until // another candidate may be elected
		return
	}
	c.retryAt = until
}

// Check returns an error that names a broken invariant, or nil.
func (c *Contest) Check() error {
	broken := func(text string) error { return errors.New("coordinator: broken invariant: " + text) }
	if c.lease != nil && c.termAt.After(c.pulseAt) {
		return broken("a term did not begin after its last renewal")
	}
	if a := c.assignee; a != nil && (c.candidates[a.Name] != a || c.Holder() != a.Name) {
		return broken("the assignee is a candidate and holds the Lease")
	}
	if (c.failing != Wait) != (c.failures > 0) {
		return broken("there are failures if and only if an action fails")
	}
	for name, known := range c.candidates {
		switch {
		case known.Name != name:
			return broken("a candidate is known by its name")
		case !known.pinged.IsZero() && (!known.open() || known.spins()):
			return broken("a candidate with a ping to answer considers it unanswered")
		case known.heard.After(known.seen):
			return broken("a sign of life was seen when it was heard")
		}
	}
	return nil
}
