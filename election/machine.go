// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// phase is the state of a candidate.
type phase int

const (
	// standby: no work runs, and the candidate may claim the lease.
	standby phase = iota
	// leading: the work runs and the lease is renewed.
	leading
	// draining: the context of the work is cancelled; the lease is renewed until
	// the work has returned, and then given away.
	draining
	// ended: another candidate has, or may have, the lease. The context of the work
	// is cancelled, and the work has not returned yet.
	ended
	// finished: Run may return.
	finished
)

// move is the next action of the machine.
type move = step[*coordinationv1.Lease]

// The machine reports these, and the arguments of Hooks, to the loop.
type (
	// workCancelled: the context of the work was cancelled.
	workCancelled struct{ cause error }
	// mixedRegistries: other candidates use the other registry.
	mixedRegistries struct{}
)

// setup is the part of a machine that does not change.
type setup struct {
	Config
	id     string         // on the Lease
	random func() float64 // in [0,1)
}

// machine decides about a candidate. It does no I/O and has no clock: its methods
// take events and times, and next returns the action.
type machine struct {
	setup
	told  []any // events for the loop, in order
	phase phase

	sighting
	follower // of the Lease
	// denials are writes in a row that failed, conflicts those that met another
	// write. A successful read between two writes resets neither.
	denials, conflicts int
	lastRead           time.Duration // when the last GET was answered
	// blind means that the next event of the watch may stand for several states, because
	// the watch began without a version, at blindSince.
	blind      bool
	blindSince time.Duration
	confirms   bool   // the next read is due only because of that
	settled    bool   // a Lease was seen, or its creation would be
	busy       Op     // the request under way
	basedOn    string // the resourceVersion that it is based on

	self        Peer // without the identity on the Lease
	created     time.Time
	records     map[string]record // on the Lease, by identity
	published   publishing
	annotations map[string]string // from which records was read
	mixed       bool              // other candidates use the other registry
	draw        float64           // of this vacancy, to spread claims of equal rank
	standBackTo time.Duration

	term    *term      // in the phases leading, draining and ended
	past    spec.Pulse // of the last term
	doubts  map[string]doubt
	release *release

	verdicts map[string]verdict // about candidates that a coordinator prefers
	inquiry  string             // the candidate about which a verdict is needed; "" for none

	stopping bool
	stopBy   time.Duration // of what follows the work; never before it has returned
}

// release is a lease that this candidate holds and gives away, because its work has
// returned.
type release struct {
	pulse spec.Pulse    // of the term
	to    string        // the next holder; "" for none
	until time.Duration // after that, no candidate becomes the holder
}

// never is later than any time that a machine reaches.
const never = 1<<63 - 1

// Times of reading and publishing.
const (
	// publishSpread is the time within which candidates that start together
	// publish their records.
	publishSpread = 250 * time.Millisecond
	// publishGap is the least time between two writes of a record, except for an ack.
	publishGap = time.Second
	// changeGap is the least time between two records with different content.
	changeGap = 10 * time.Second
	// minCall is the least time that a leader gives to a call.
	minCall = 500 * time.Millisecond
	// watchDriftEvery is the time between two comparisons of a leader's clocks.
	watchDriftEvery = time.Second
	// idleWake bounds the time between two steps, for liveness.
	idleWake = 10 * time.Second
)

func newMachine(s setup, self Peer, now instant) *machine {
	return &machine{
		setup: s, self: self, created: now.wall.UTC().Truncate(time.Millisecond), draw: s.random(), stopBy: never,
		sighting: sighting{me: s.id, exclusive: s.ExclusiveIdentity, def: s.Timing.LeaseDuration},
		follower: follower{poll: s.Timing.RenewInterval, reread: true},
		doubts:   make(map[string]doubt), verdicts: make(map[string]verdict), published: publishing{at: now.mono - changeGap},
	}
}

func (m *machine) tell(effect any) { m.told = append(m.told, effect) }

// mine reports whether this candidate is the holder.
func (m *machine) mine() bool { return spec.HolderOf(m.lease) == m.id }

// next returns the action at now.
func (m *machine) next(now instant) (s move) {
	m.expire(now)
	m.begin(now.mono, idleWake)
	m.due(now.mono, m.standBackTo) // then there are records to write
	if m.busy == "" {
		s = m.choose(now)
	}
	if s.op != "" {
		m.busy, m.basedOn = s.op, versionOf(m.lease)
	}
	if m.busy != "" {
		m.begin(now.mono, idleWake) // nothing else is sent until it is answered
		s.abort = m.unwanted(now.mono)
	}
	s.wake = m.wakeAt
	return s
}

// choose returns the next request.
func (m *machine) choose(now instant) move {
	switch {
	case m.holds():
		return m.nextLeading(now)
	case m.phase == ended:
		return m.nextReading(now.mono)
	}
	return m.nextStandby(now)
}

// holds reports whether the lease is this candidate's and its work may run.
func (m *machine) holds() bool { return m.phase == leading || m.phase == draining }

// expire ends a term whose deadline has come.
func (m *machine) expire(now instant) {
	if m.holds() && m.term.expire(now.mono) {
		m.endTerm(now.mono, ErrExpired)
	}
}

// unwanted reports whether to cancel the request under way.
func (m *machine) unwanted(now time.Duration) bool {
	if m.holds() {
		m.due(now, m.term.until())
	}
	claims, stopped := m.due(now, m.claimAt()), m.due(now, m.stopBy)
	switch m.busy {
	case OpRenew:
		return !m.holds()
	case OpRead:
		return stopped || m.stopping && m.phase == standby && !m.stale()
	case OpPublish:
		return m.stopping || claims
	}
	return stopped
}

// endTerm ends the term because the lease is, or may be, another candidate's.
func (m *machine) endTerm(now time.Duration, cause error) {
	m.cancelWork(now, cause)
	m.closeOffer(now, false)
	m.phase = ended
	m.mustRead(true)
	m.failures, m.denials, m.retryAt = 0, 0, 0
}

// drain cancels the work so that the lease can be given away.
func (m *machine) drain(now time.Duration, cause error) {
	m.cancelWork(now, cause)
	m.phase = draining
}

// cancelWork cancels the context of the work, unless that has happened.
func (m *machine) cancelWork(now time.Duration, cause error) {
	if t := m.term; t.cause == nil {
		t.cause, t.cancelledAt = cause, now
		t.end(cause)
		m.tell(workCancelled{cause})
	}
}

// stop ends the term, if there is one, and then Run.
func (m *machine) stop(now time.Duration, cause error) {
	if m.stopping {
		return
	}
	m.stopping = true
	switch m.phase {
	case leading:
		m.drain(now, cause)
	case standby:
		m.stopBy = now + m.ShutdownTimeout
	}
}

// resign ends the term, if there is one.
func (m *machine) resign(now time.Duration) {
	if m.phase != leading {
		return
	}
	m.standBackTo = now + m.Timing.MinTenure
	m.drain(now, ErrResigned)
}

// finishWork updates m after the work has returned. It reports whether the work
// returned before its context was cancelled.
func (m *machine) finishWork(now time.Duration) (bySelf bool) {
	bySelf = m.phase == leading
	m.term.end(nil)
	over := now
	if !bySelf {
		over = m.term.cancelledAt
	}
	m.tell(TermEnded{Token: m.term.token, Cause: m.term.cause, Duration: over - m.term.began, Drained: now - over})
	m.closeOffer(now, false)
	if bySelf || m.stopping {
		m.stopping = true
		m.stopBy = now + m.ShutdownTimeout
	}
	if m.phase != ended || m.stopping {
		m.release = &release{pulse: m.term.pulse, to: m.term.target, until: m.term.until()}
		if _, there := m.records[m.term.target]; !there && !m.Registry.native {
			m.release.to = "" // it has withdrawn while the work came to its end
		}
	}
	m.phase, m.past = standby, m.term.pulse
	m.term = nil
	m.draw = m.random()
	return bySelf
}

// holderGone ends the wait for a holder whose process has ended for certain.
func (m *machine) holderGone(now time.Duration, identity string) {
	holder := spec.HolderOf(m.lease)
	if _, suffix, cut := strings.Cut(holder, identity+"_"); holder == identity || cut && len(suffix) == suffixLength && holder == identity+"_"+suffix {
		m.held = min(m.held, now)
	}
}

// pendingOffer is an offer of the lease to a better candidate.
type pendingOffer struct {
	to     string
	id     string // unique among the offers of this Lease; without spaces
	stored bool   // it is on the Lease
	since  time.Duration
	until  time.Duration
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

// nextLeading returns the next request of a candidate that holds the lease.
func (m *machine) nextLeading(now instant) move {
	m.due(now.mono, m.term.until())
	if m.phase == leading {
		m.succession(now.mono)
	}
	if m.reread {
		read := m.nextReading(now.mono)
		read.timeout = m.leaderTimeout(now.mono)
		return read
	}
	at := m.term.renewAt
	if m.phase == leading && m.term.offer != m.term.sentOffer || m.term.suspended(now) {
		at = now.mono
	}
	if !m.due(now.mono, max(at, m.retryAt)) {
		m.due(now.mono, now.mono+watchDriftEvery)
		return move{}
	}
	return move{op: OpRenew, object: m.renewedLease(now), timeout: m.leaderTimeout(now.mono)}
}

// leaderTimeout returns half of the time that is left, so that there is time for
// another call.
func (m *machine) leaderTimeout(now time.Duration) time.Duration {
	left := m.term.until() - now
	return min(m.CallTimeout, max(left/2, minCall), left)
}

// succession compares the leader with the other candidates.
func (m *machine) succession(now time.Duration) {
	if m.Registry.native {
		m.weighPreference(now)
		return
	}
	if m.term.offer != nil {
		m.awaitAck(now, m.term.offer)
		return
	}
	peers, chosen, agreed := m.others("")
	if !m.due(now, m.term.began+m.Timing.MinTenure) || !chosen || !agreed {
		return
	}
	peers = slices.DeleteFunc(peers, func(p Peer) bool { return !Eligible(m.Strategy, p) || !m.due(now, m.doubts[p.Identity].until()) })
	if len(peers) == 0 {
		return
	}
	best := slices.MinFunc(peers, func(p, q Peer) int { return Compare(m.Strategy, p, q, "") })
	if m.self.LastResort || Preempts(m.Strategy, best, m.asPeer()) {
		m.term.offer = &pendingOffer{to: best.Identity, id: fmt.Sprintf("%d.%d", m.term.pulse.Transitions, now)}
	}
}

// awaitAck waits for the answer to an offer.
func (m *machine) awaitAck(now time.Duration, o *pendingOffer) {
	r, present := m.records[o.to]
	switch {
	case !present:
		m.closeOffer(now, false) // it has withdrawn
	case !o.stored:
	case r.Ack == o.id:
		m.term.target = o.to
		m.closeOffer(now, true)
		m.drain(now, ErrSuperseded)
	case m.due(now, o.until):
		maps.DeleteFunc(m.doubts, func(_ string, d doubt) bool { return now >= d.until()+spec.Doubt(math.MaxInt) }) // long gone
		m.doubts[o.to] = doubt{n: m.doubts[o.to].n + 1, since: now}
		m.closeOffer(now, false)
	}
}

// offerStored updates the offer after a renewal was stored. The API server may have
// stored it without the offer, because of a webhook. Then the next renewal repeats it.
func (m *machine) offerStored(now time.Duration) {
	o := m.term.offer
	m.term.sentOffer = o
	if o == nil || o.stored || m.lease.Annotations[offerAnnotation] != o.encode() {
		return
	}
	o.stored, o.since, o.until = true, now, now+m.Timing.AckTimeout
	m.tell(Offered{To: o.to})
}

// closeOffer ends the offer, if there is one.
func (m *machine) closeOffer(now time.Duration, accepted bool) {
	if o := m.term.offer; o != nil && o.stored {
		m.tell(OfferEnded{To: o.to, Accepted: accepted, Elapsed: now - o.since})
	}
	m.term.offer = nil
}

// nextStandby returns the next request of a candidate whose work does not run.
func (m *machine) nextStandby(now instant) move {
	if m.release != nil {
		if release, more := m.nextRelease(now); more {
			return release
		}
	}
	if m.stopping {
		return m.nextStopping(now)
	}
	if read := m.nextReading(now.mono); read.op != "" || !m.known || !m.due(now.mono, m.retryAt) {
		return read
	}
	claim := m.claimAt()
	switch {
	case m.due(now.mono, claim):
		return move{op: OpClaim, object: m.claimedLease(now), timeout: m.CallTimeout}
	case m.due(now.mono, m.publishAt(now.mono)):
		return m.publishMove(now, claim)
	}
	return move{}
}

// nextReading reads the Lease if that is due.
func (m *machine) nextReading(now time.Duration) move {
	if !m.due(now, m.nextRead(m.watching())) {
		return move{}
	}
	return move{op: OpRead, timeout: m.CallTimeout}
}

// watching reports whether the Lease should be watched, and can be. Observers
// don't watch.
func (m *machine) watching() bool {
	return m.known && !m.polling && (m.phase != standby || !m.observer())
}

// observer reports whether the Lease has no room for a record of this candidate.
func (m *machine) observer() bool {
	return !m.Registry.native && m.known && m.lease != nil && !m.self.LastResort && !m.placed()
}

// readInterval draws the time until the next read of a Lease that is not watched.
func (m *machine) readInterval() time.Duration {
	if m.polling && !m.observer() {
		return m.poll
	}
	return time.Duration((0.5 + m.random()) * 2 * float64(m.Timing.LeaseDuration))
}

// claimAt returns when to claim the lease: when it is free, as far as was observed,
// and better candidates have let their turns pass.
func (m *machine) claimAt() time.Duration {
	switch {
	case m.phase != standby || !m.known || m.stopping:
		return never
	case m.mine():
		// It was handed over, or a coordinator assigned it. In the second case an
		// earlier leader may not know that yet.
		return m.base
	}
	at := m.freeAt()
	if m.Registry.native {
		at += m.FallbackAfter + time.Duration(m.draw*float64(maxRank*stagger))
	} else {
		at += m.turn()
	}
	if spec.HolderOf(m.lease) != "" && !m.watching() && m.lastRead < at {
		return never // look before
	}
	return at
}

// turn returns the time that this candidate leaves to better ones.
func (m *machine) turn() time.Duration {
	peers, chosen, _ := m.others(spec.HolderOf(m.lease))
	better := 0
	for _, p := range peers {
		if Compare(m.Strategy, p, m.asPeer(), "") < 0 {
			better++
		}
	}
	if better >= maxRank || !chosen || m.self.LastResort || m.pulseAt < m.standBackTo || m.observer() {
		return time.Duration((maxRank - m.draw) * float64(stagger))
	}
	return time.Duration(better) * stagger
}

// others returns the candidates with records, without this one and except. chosen
// reports whether the strategy of this candidate is the one to follow, agreed
// whether all candidates of the highest version want the same one.
func (m *machine) others(except string) (peers []Peer, chosen, agreed bool) {
	ballots := []spec.Ballot{{BinaryVersion: m.self.BinaryVersion, Strategy: m.Strategy.Name()}}
	for id, r := range m.records {
		if id != m.id && id != except {
			peers = append(peers, r.Peer)
			ballots = append(ballots, spec.Ballot{BinaryVersion: r.BinaryVersion, Strategy: r.Strategy})
		}
	}
	name, agreed := spec.ChosenStrategy(ballots, func(string) bool { return false })
	return peers, name == m.Strategy.Name(), agreed
}

// asPeer returns this candidate as its record describes it.
func (m *machine) asPeer() Peer {
	p := m.self
	p.Identity, p.Created = m.id, m.created
	return p
}

// nextRelease returns the request that gives the lease away. more is false if the
// lease is no longer this candidate's.
func (m *machine) nextRelease(now instant) (request move, more bool) {
	timeout := m.stopTimeout(now.mono)
	switch {
	case m.due(now.mono, m.stopBy), m.known && !m.reread && !spec.PulseOf(m.lease).SameTerm(m.release.pulse):
		m.release = nil
		return move{}, false
	case !m.due(now.mono, m.retryAt):
		return move{}, true
	case m.reread:
		return move{op: OpRead, timeout: timeout}, true
	case now.mono >= m.release.until:
		m.release.to = "" // that was long ago
	}
	return move{op: OpHandOver, object: m.handedLease(now, m.release.to), timeout: timeout}, true
}

// nextStopping releases a lease that was handed to this candidate in the meantime, or
// claimed with a request that seemed to fail, withdraws the record, and ends.
func (m *machine) nextStopping(now instant) move {
	over := m.due(now.mono, m.stopBy)
	if !over && m.mine() && m.due(now.mono, m.base) {
		m.release = &release{pulse: spec.PulseOf(m.lease)}
		if release, more := m.nextRelease(now); more {
			return release
		}
	}
	_, published := m.records[m.id]
	switch {
	case over, !m.stale() && (m.Registry.native || !published):
		m.phase = finished
		return move{}
	case !m.due(now.mono, m.retryAt):
		return move{}
	case m.stale():
		return move{op: OpRead, timeout: m.stopTimeout(now.mono)}
	}
	return move{op: OpWithdraw, object: m.recordLease(now), timeout: m.stopTimeout(now.mono)}
}

// stale reports whether the Lease must be read before another write.
func (m *machine) stale() bool { return m.known && m.reread }

// stopTimeout returns the timeout of a request of a candidate that may be stopping.
func (m *machine) stopTimeout(now time.Duration) time.Duration {
	return max(time.Millisecond, min(m.CallTimeout, m.stopBy-now))
}
