// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/internal/backoff"
)

// phase is what a candidate is doing.
type phase int

const (
	// standby: none of our work runs, and we may claim the lease.
	standby phase = iota
	// leading: the work runs and the lease is renewed.
	leading
	// draining: the context of the work is cancelled; the lease is renewed until
	// the work has returned, and then given away.
	draining
	// ended: the lease is not ours any more, or may be somebody else's; the
	// context of the work is cancelled and it has not returned yet.
	ended
	// finished: Run may return.
	finished
)

// String returns the name of the phase.
func (p phase) String() string {
	return [...]string{"standby", "leading", "draining", "ended", "finished"}[p]
}

// move is a request that the machine wants to be sent. There is one at a time.
type move struct {
	op Op // "" for none
	// lease is what to write: with a resourceVersion a PUT, without a POST.
	lease *coordinationv1.Lease
	// patch is a merge patch of annotations, where there is no lease.
	patch map[string]any
	// timeout is the deadline of the request.
	timeout time.Duration
}

// step is what to do next.
type step struct {
	move
	// abort says that the request under way is not wanted any more.
	abort bool
	// wake is when to ask again although nothing has happened. Never zero.
	wake time.Duration
}

// What the machine tells, besides the arguments of Hooks.
type (
	// cancelWork: the context of the work is to be cancelled.
	cancelWork struct{ cause error }
	// beginWork: the work is to be started. It follows a TermStarted.
	beginWork struct {
		sent     instant
		deadline time.Duration
	}
	// extendWork: the deadline of the term has moved.
	extendWork struct {
		sent     instant
		deadline time.Duration
	}
	// mixedRegistries: somebody uses the other registry.
	mixedRegistries struct{}
)

// setup is what does not change while a machine lives.
type setup struct {
	id              string
	timing          Timing
	callTimeout     time.Duration
	shutdownTimeout time.Duration
	fallback        time.Duration
	native          bool // LeaseCandidates
	strategy        Strategy
	namespace, name string         // of the Lease
	random          func() float64 // in [0,1)
}

// machine decides what a candidate does. It does no I/O and has no clock: it is
// told what happens, and when, and says what to do next.
type machine struct {
	setup
	told  []any // what the loop is to do and to tell, in order
	phase phase

	sighting
	// reread: what is known of the Lease may be out of date.
	reread bool
	// watchStale: the watch has missed something.
	watchStale bool
	// polling: the Lease can't be watched.
	polling   bool
	pollUntil time.Duration // then a watch is tried again
	// noPatch: records can't be written by PATCH.
	noPatch  bool
	lastRead time.Duration // when the last GET was answered
	readAt   time.Duration // when the next one is due where there is no watch
	// failures are reads in a row that failed, denials writes, and conflicts
	// writes that met one. A read that succeeds between two writes says nothing
	// about the next one.
	failures, denials, conflicts int
	retryAt                      time.Duration
	busy                         Op     // the request under way
	basedOn                      string // the resourceVersion that it is based on

	self        Peer // without the identity on the Lease
	created     time.Time
	records     map[string]record // on the Lease
	standing    *standing         // what follows from them; nil where that is to be found out
	published   publishing
	annotations map[string]string // from which records was read
	watched     map[string]watchedRecord
	mixed       bool    // other candidates use the other registry
	draw        float64 // of this vacancy, to spread claims of equal rank
	standBackTo time.Duration

	term        termState
	past        pulseOf // of the last term
	suspects    map[string]suspicion
	offers      int           // made by this process
	cancelledAt time.Duration // when the context of the work was
	giving      *giving

	stopping    bool
	stopBy      time.Duration
	withdrawals int // tries
}

// termState is the term that this candidate has, in the phases leading and
// draining.
type termState struct {
	pulse    pulseOf // uid, holder and transitions are those of the term
	token    uint64
	began    time.Duration
	sent     instant // the last write that succeeded
	deadline time.Duration
	renewAt  time.Duration
	offer    *pendingOffer
	target   string // who takes over
	cause    error  // why it is ending
}

// giving is a lease that this candidate has and does not want, its work having
// returned.
type giving struct {
	pulse pulseOf // of the term
	to    string
	until time.Duration // then it is released instead
}

// never is later than any time that a machine reaches.
const never = 1<<63 - 1

// retries are those of a candidate that does not lead.
func retries() backoff.Policy {
	return backoff.Policy{Base: retryMin, Cap: 5 * time.Second}
}

// Times of reading and publishing.
const (
	// publishSpread is the time within which candidates that start together
	// publish their records.
	publishSpread = 250 * time.Millisecond
	// publishGap is the least time between two records, but for an ack.
	publishGap = time.Second
	// changeGap is the least time between two records that say something else.
	changeGap = 10 * time.Second
	// minCall is the least time that a leader gives to a call.
	minCall = 500 * time.Millisecond
	// watchDriftEvery is how often a leader compares its clocks.
	watchDriftEvery = time.Second
	// pollFor is how long the Lease is polled after a watch was refused.
	pollFor = 10 * time.Minute
	// idleWake bounds the time between two steps, for liveness.
	idleWake = 10 * time.Second
)

func newMachine(s setup, self Peer, now instant) *machine {
	m := &machine{setup: s, self: self, created: now.wall.UTC().Truncate(time.Millisecond), draw: s.random(), reread: true}
	m.suspects, m.watched = make(map[string]suspicion), make(map[string]watchedRecord)
	m.published = publishing{at: now.mono - changeGap, changedAt: now.mono - changeGap, jitter: s.random()}
	return m
}

func (m *machine) tell(effect any) { m.told = append(m.told, effect) }

// mine reports whether this candidate is the holder.
func (m *machine) mine() bool { return holderOf(m.lease) == m.id }

// next says what to do now.
func (m *machine) next(now instant) step {
	m.expire(now)
	m.polling = m.polling && now.mono < m.pollUntil
	var s step
	switch {
	case m.busy != "":
		s = step{abort: m.unwanted(now.mono), wake: m.wakeWhileBusy(now.mono)}
	case m.phase == leading || m.phase == draining:
		s = m.nextLeading(now)
	case m.phase == ended:
		s = m.nextReading(now.mono)
	default:
		s = m.nextStandby(now)
	}
	if s.op != "" {
		m.busy, m.basedOn = s.op, resourceVersionOf(m.lease)
	}
	if m.standBackTo > now.mono {
		s.wake = min(s.wake, m.standBackTo) // then there are records to write
	}
	if s.wake == 0 || s.wake > now.mono+idleWake {
		s.wake = now.mono + idleWake
	}
	if s.op != "" {
		s.wake = m.wakeWhileBusy(now.mono)
	}
	return s
}

// expire ends a term whose deadline has come.
func (m *machine) expire(now instant) {
	if (m.phase == leading || m.phase == draining) && now.mono >= m.term.deadline {
		m.endTerm(now.mono, ErrExpired)
	}
}

// unwanted reports whether the request under way should not go on.
func (m *machine) unwanted(now time.Duration) bool {
	switch m.busy {
	case OpRenew:
		return m.phase != leading && m.phase != draining
	case OpRead:
		return m.stopping && m.giving == nil
	case OpPublish:
		return m.stopping || now >= m.claimAt()
	case OpClaim, OpHandOver, OpWithdraw:
		return m.stopping && now >= m.stopBy
	}
	return false
}

func (m *machine) wakeWhileBusy(now time.Duration) time.Duration {
	wake := now + idleWake
	if m.phase == leading || m.phase == draining {
		wake = min(wake, m.term.deadline)
	} else if claim := m.claimAt(); claim > now {
		wake = min(wake, claim)
	}
	if m.stopping && m.stopBy > now {
		wake = min(wake, m.stopBy)
	}
	return wake
}

// endTerm says that the lease is not this candidate's any more.
func (m *machine) endTerm(now time.Duration, cause error) {
	if m.term.cause == nil {
		m.term.cause = cause
		m.cancelledAt = now
		m.tell(cancelWork{cause})
	}
	m.closeOffer(now, false)
	m.phase = ended
	m.reread = true
	m.failures, m.denials, m.retryAt = 0, 0, 0
}

// drain says that the work is to end so that the lease can be given away.
func (m *machine) drain(now time.Duration, cause error) {
	m.phase = draining
	m.term.cause = cause
	m.cancelledAt = now
	m.tell(cancelWork{cause})
}

// stop says that Run is to end.
func (m *machine) stop(now time.Duration, cause error) {
	if m.stopping {
		return
	}
	m.stopping = true
	m.stopBy = never // of what follows the work
	m.withdrawals = 0
	switch m.phase {
	case leading:
		m.drain(now, cause)
	case standby:
		m.stopBy = now + m.shutdownTimeout
	}
}

// resign ends the term, if there is one.
func (m *machine) resign(now time.Duration) {
	if m.phase != leading {
		return
	}
	m.standBackTo = now + m.timing.MinTenure
	m.drain(now, ErrResigned)
}

// worked says that the work has returned, and reports whether that was by
// itself.
func (m *machine) worked(now time.Duration) (bySelf bool) {
	bySelf = m.phase == leading
	over := now
	if !bySelf {
		over = m.cancelledAt
	}
	m.tell(TermEnded{Token: m.term.token, Cause: m.term.cause, Duration: over - m.term.began, Drained: now - over})
	m.closeOffer(now, false)
	held := m.phase != ended || sameTerm(pulseIn(m.lease), m.term.pulse)
	if bySelf || m.stopping {
		m.stopping = true
		m.stopBy = now + m.shutdownTimeout
	}
	if held && (m.phase != ended || m.stopping) {
		m.giving = &giving{pulse: m.term.pulse, to: m.term.target, until: m.term.deadline}
		if _, there := m.records[m.term.target]; !there && !m.native {
			m.giving.to = "" // it has withdrawn while the work came to its end
		}
	}
	m.phase, m.past = standby, m.term.pulse
	m.term = termState{}
	m.draw = m.random()
	return bySelf
}

// setSelf changes what this candidate says about itself.
func (m *machine) setSelf(p Peer) { m.self, m.standing = p, nil }

// watchRefused says that the Lease can't be watched for want of permission.
func (m *machine) watchRefused(now time.Duration) {
	m.polling = true
	m.pollUntil = now + pollFor
	m.readAt = now + m.timing.RenewInterval
}

// watchGone says that a watch has lost its place.
func (m *machine) watchGone() { m.reread = true }
