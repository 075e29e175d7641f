// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package machine decides what a candidate of package election does next.
//
// [Machine.Apply] records facts, [Machine.Next] returns the next action for the Lease,
// and [Machine.Check] returns which invariant is broken. [Upkeep] does the same for the
// LeaseCandidate. The package reads no clock and sends no request. DESIGN.md of package
// election explains why there are never two leaders.
package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// A Phase is the state of a candidate.
type Phase uint8

const (
	// Standby: no work runs, and the candidate may claim the lease.
	Standby Phase = iota
	// Leading: the work runs and the lease is renewed.
	Leading
	// Draining: the context of the work is cancelled; the lease is renewed until
	// the work has returned, and then given away.
	Draining
	// Ended: another candidate has, or may have, the lease. The context of the work
	// is cancelled, and the work has not returned yet.
	Ended
	// Finished: Run may return.
	Finished
)

// String returns the name of the phase.
func (p Phase) String() string {
	return [...]string{"standby", "leading", "draining", "ended", "finished"}[p]
}

// A Machine is the state of a candidate. It is not safe for concurrent use.
type Machine struct {
	Rules
	strategy string // its name
	registry registry

	// Invariant: there is a term in the phases Leading, Draining and Ended, and in no other.
	// Invariant: in the phases Leading and Draining the observed Lease is of the term.
	// Invariant: a lease is given away in phase Standby only, when the work has returned.
	phase   Phase
	term    *term
	past    spec.Pulse // of the last term
	release *release

	// What was observed of the Lease.
	sighting
	follower
	lastRead time.Duration // when the last GET was answered
	// led is when a leader was last seen to be alive: it claimed, renewed or gave away the
	// lease. It is negative if none was seen.
	led     time.Duration
	settled bool // a Lease was seen, or its creation would be
	// blind means that the next event of the watch may stand for several states, because
	// the watch began without a version, at blindSince.
	blind      bool
	blindSince time.Duration

	// The request under way. At most one is.
	//
	// Invariant: there is a version only with a request.
	busy    Op
	basedOn string // the resourceVersion that it is based on
	// denials are writes in a row that failed, conflicts those that met another
	// write. A successful read between two writes resets neither.
	denials, conflicts int

	// This candidate.
	self        spec.Peer // without the identity on the Lease
	created     time.Time
	draw        float64 // of this vacancy, to spread claims of equal rank
	standBackTo time.Duration

	// The end of Run.
	//
	// Invariant: ShutdownTimeout begins when Run ends and the work has returned.
	stopping bool
	stopBy   time.Duration // Never before

	alarm   alarm    // of the decisions of the last Tick
	effects []Effect // of the present event
	broken  error    // the first broken invariant or refused change of state
}

// An Instant is a reading of two clocks. Decisions depend on the monotonic one only.
// The wall clock is written to the Lease, and shows that the machine was suspended.
type Instant struct {
	Mono time.Duration // since an epoch
	Wall time.Time     // as it is written to the Lease
}

// Drift is the difference of the two clocks, except for a constant.
func (i Instant) Drift() time.Duration { return time.Duration(i.Wall.UnixNano()) - i.Mono }

// term is the part of a term that decisions need.
//
// Invariant: the deadline counts from the send of the last renewal, or of the claim.
// Invariant: the context of the work is cancelled if and only if there is a cause.
type term struct {
	token    uint64
	pulse    spec.Pulse // its uid, holder and transitions are those of the term
	began    time.Duration
	sent     Instant // when the last successful write was sent
	deadline time.Duration
	renewAt  time.Duration
	target   string // the candidate that takes over

	cause       Cause
	cancelledAt time.Duration
}

// release is a lease that this candidate holds and gives away, because its work has
// returned.
type release struct {
	pulse spec.Pulse    // of the term
	to    string        // the next holder; "" for none
	until time.Duration // after that, no candidate becomes the holder
}

// registry is the place where candidates make themselves known, and the way in which
// one of them is chosen.
type registry interface {
	// observed updates the registry after the Lease was observed.
	observed(now time.Duration)
	// observer reports whether the registry has no room for this candidate.
	observer() bool
	// turn returns the time for which this candidate leaves a free Lease to others.
	turn() time.Duration
	// weigh compares the leader with other candidates.
	weigh(now time.Duration)
	// urgent reports whether a renewal must not wait.
	urgent() bool
	// ended updates the registry after the term ended for the registry: no candidate is
	// offered the lease any more, because one accepted or for another reason.
	ended(now time.Duration, accepted bool)
	// heir returns to if that candidate still wants the lease, else "".
	heir(to string) string

	// write changes a Lease that this candidate writes with a request.
	write(now time.Duration, op Op, l *coordinationv1.Lease)
	// stored updates the registry after such a write was stored, and a claim began a term.
	stored(now time.Duration, op Op)

	// published reports whether the Lease has a record of this candidate.
	published() bool
	// publishAt returns when to write or withdraw the record, and the request.
	publishAt(now time.Duration) (time.Duration, Op)
	// postpone puts off the next write of the record.
	postpone(until time.Duration)

	// inquiry returns the name of the LeaseCandidate to read, "" for none.
	inquiry() string
	// inquired updates the registry from that LeaseCandidate.
	inquired(now time.Duration, e Inquired)

	// check returns an error that names a broken invariant, or nil.
	check() error
}

// New returns the state of a candidate that begins at now.
func New(rules Rules, self spec.Peer, now Instant) *Machine {
	m := &Machine{
		Rules: rules, strategy: rules.Strategy.Name(), self: self, created: now.Wall.UTC().Truncate(time.Millisecond), draw: rules.Random(), stopBy: Never, led: -1,
		sighting: sighting{me: rules.ID, exclusive: rules.Exclusive, def: rules.LeaseDuration},
		follower: follower{poll: rules.RenewInterval, sure: uncertain},
	}
	if rules.Coordinated {
		m.registry = &coordinated{Machine: m, verdicts: make(map[string]verdict)}
	} else {
		m.registry = &onLease{Machine: m, doubts: make(map[string]doubt), own: publishing{at: now.Mono - changeGap}}
	}
	return m
}

// Status is what the driver reports about a candidate.
type Status struct {
	Phase Phase // of the candidate
	// Holder is the observed holder, "" for none, and UID that of its Lease.
	Holder string
	UID    types.UID
	// Exists says that there is a Lease.
	Exists bool
	// Until is when the lease expires, as far as was observed.
	Until time.Duration
	// Cause is why the context of the work was cancelled, at CancelledAt.
	Cause       Cause
	CancelledAt time.Duration
}

// Status returns the present state.
func (m *Machine) Status() Status {
	s := Status{Phase: m.phase, Holder: m.pulse.Holder, Exists: m.lease != nil, Until: m.held}
	if m.lease != nil {
		s.UID = m.lease.UID
	}
	if t := m.term; t != nil {
		s.Cause, s.CancelledAt = t.cause, t.cancelledAt
		if m.mine() {
			s.Until = t.deadline
		}
	}
	return s
}

// Candidacy returns the LeaseCandidate as it should be now. A candidate that does
// not want to lead withdraws it. It does not exist before the Lease was read, or its
// creation would be seen: otherwise an assignment over a live leader could be the first
// observation. A candidate that can't lead before base, or while the work of a term that is
// over still runs, shows no sign of life until then.
func (m *Machine) Candidacy(now time.Duration) Candidacy {
	return Candidacy{
		self: m.self, present: m.settled && !m.stopping && !m.self.LastResort && now >= m.standBackTo,
		waits: m.phase == Ended || m.phase == Standby && now < m.base, stopping: m.stopping, inquiry: m.registry.inquiry(),
	}
}

// asPeer returns this candidate as its record describes it.
func (m *Machine) asPeer() spec.Peer {
	p := m.self
	p.Identity, p.Created = m.ID, m.created
	return p
}

func (m *Machine) tell(e Effect) { m.effects = append(m.effects, e) }

// holds reports whether the lease is this candidate's and its work may run.
func (m *Machine) holds() bool { return m.phase == Leading || m.phase == Draining }

// Apply updates m from a fact, and returns the effects in order.
func (m *Machine) Apply(now Instant, e Event) []Effect {
	m.effects = nil
	m.expire(now.Mono)
	switch e := e.(type) {
	case Tick:
		m.tick(now)
	case Sent:
		m.sent(now.Mono, e.Action)
	case Answered[*coordinationv1.Lease]:
		m.answered(now, e)
	case Seen[*coordinationv1.Lease]:
		from := inOrder
		if m.blind {
			from, m.blind = afterGap, false
		}
		m.observe(now, e.Object, e.Deleted, from)
	case WatchBegan:
		m.watchBegan(now.Mono)
	case WatchWorks:
		m.follower.gone = 0
	case WatchLost:
		m.lost(now.Mono, e.Gone)
	case Described:
		m.self = e.Self
	case Expired:
		if m.holds() {
			m.becomeEnded(now.Mono, TimeOut)
		}
	case WorkReturned:
		m.becomeStandby(now.Mono)
	case Stopped:
		m.stop(now.Mono)
	case Resigned:
		if m.phase == Leading {
			m.standBackTo = now.Mono + m.MinTenure
			m.becomeDraining(now.Mono, Resigning)
		}
	case HolderGone:
		m.holderGone(now.Mono, e.Identity)
	case Inquired:
		m.registry.inquired(now.Mono, e)
	}
	return m.effects
}

// expire ends a term whose deadline has come, before anything else is done.
func (m *Machine) expire(now time.Duration) {
	if m.holds() && now >= m.term.deadline {
		m.becomeEnded(now, TimeOut)
	}
}

// enter changes the phase. It refuses to if the phase before is none of from.
func (m *Machine) enter(to Phase, from ...Phase) bool {
	if !slices.Contains(from, m.phase) {
		m.refuse(fmt.Errorf("phase %v can't follow %v", to, m.phase))
		return false
	}
	m.phase = to
	return true
}

// refuse reports a broken invariant, once.
func (m *Machine) refuse(err error) {
	if m.broken == nil {
		m.broken = err
		m.tell(Broken{err})
	}
}

// becomeLeading begins a term with a claim that was stored in time.
func (m *Machine) becomeLeading(now time.Duration, t *term) {
	if !m.enter(Leading, Standby) {
		return
	}
	vacant := time.Duration(0)
	if m.led >= 0 {
		vacant = now - m.led
	}
	m.led = now
	m.term, m.release = t, nil
	m.registry.stored(now, Claim)
	m.tell(TermStarted{Token: t.token, Transitions: t.pulse.Transitions, Vacant: vacant, Sent: t.sent, Deadline: t.deadline})
}

// becomeDraining cancels the work so that the lease can be given away.
func (m *Machine) becomeDraining(now time.Duration, cause Cause) {
	if m.enter(Draining, Leading) {
		m.cancelWork(now, cause)
	}
}

// becomeEnded ends the term because the lease is, or may be, another candidate's.
func (m *Machine) becomeEnded(now time.Duration, cause Cause) {
	if !m.enter(Ended, Leading, Draining) {
		return
	}
	m.cancelWork(now, cause)
	m.registry.ended(now, false)
	m.mustRead(true)
	m.failures, m.denials, m.retryAt = 0, 0, 0
}

// becomeStandby ends the term because the work has returned.
func (m *Machine) becomeStandby(now time.Duration) {
	t, before := m.term, m.phase
	if !m.enter(Standby, Leading, Draining, Ended) {
		return
	}
	over := now
	if before != Leading {
		over = t.cancelledAt
	}
	m.tell(TermEnded{Token: t.token, Cause: t.cause, Duration: over - t.began, Drained: now - over})
	m.registry.ended(now, false)
	if before == Leading || m.stopping {
		m.stopping, m.stopBy = true, now+m.ShutdownTimeout
	}
	if before != Ended || m.stopping {
		m.release = &release{pulse: t.pulse, to: m.registry.heir(t.target), until: t.deadline}
	}
	m.term, m.past = nil, t.pulse
}

// becomeFinished lets Run return.
func (m *Machine) becomeFinished() { m.enter(Finished, Standby) }

// cancelWork cancels the context of the work, unless that has happened.
func (m *Machine) cancelWork(now time.Duration, cause Cause) {
	if t := m.term; t.cause == NoCause {
		t.cause, t.cancelledAt = cause, now
		m.tell(WorkCancelled{cause})
	}
}

// stop ends the term, if there is one, and then Run.
func (m *Machine) stop(now time.Duration) {
	if m.stopping {
		return
	}
	m.stopping = true
	switch m.phase {
	case Leading:
		m.becomeDraining(now, Stopping)
	case Standby:
		m.stopBy = now + m.ShutdownTimeout
	}
}

// holderGone ends the wait for a holder whose process has ended for certain.
func (m *Machine) holderGone(now time.Duration, identity string) {
	holder := m.pulse.Holder
	if _, suffix, cut := strings.Cut(holder, identity+"_"); holder == identity || cut && len(suffix) == SuffixLength && holder == identity+"_"+suffix {
		m.sighting.gone(now)
	}
}

// tick carries out the decisions that only the time makes.
func (m *Machine) tick(now Instant) {
	m.follower.tick(now.Mono)
	m.alarm = alarm{now.Mono + IdleWake}
	m.alarm.due(now.Mono, m.standBackTo) // then there are records to write
	m.alarm.due(now.Mono, m.base)        // and offers are accepted
	if m.busy != "" {
		return // the answer may change everything
	}
	switch m.phase {
	case Leading:
		m.registry.weigh(now.Mono)
	case Standby:
		m.windUp(now.Mono)
	}
}

// windUp drops a release that is done or impossible. When Run ends it releases a lease
// that was handed to this candidate in the meantime, or claimed with a request that
// seemed to fail, and finishes.
func (m *Machine) windUp(now time.Duration) {
	over := m.alarm.due(now, m.stopBy)
	if r := m.release; r != nil {
		switch {
		case over, m.known && m.sure == certain && !m.pulse.SameTerm(r.pulse):
			m.release = nil
		case m.alarm.due(now, m.retryAt) && m.sure == certain && now >= r.until:
			r.to = "" // that was long ago
		}
	}
	switch {
	case m.release != nil || !m.stopping:
	case !over && m.mine() && m.alarm.due(now, m.base):
		m.release = &release{pulse: m.pulse}
	case over, !m.stale() && !m.registry.published():
		m.becomeFinished()
	}
}

// stale reports whether the Lease must be read before another write.
func (m *Machine) stale() bool { return m.known && m.sure != certain }

// sent updates m after the request of an action was sent.
func (m *Machine) sent(now time.Duration, a Step) {
	switch {
	case a.Op == "" || m.busy != "":
		m.refuse(fmt.Errorf("%q is sent while %q is under way", a.Op, m.busy))
		return
	case a.Op == Claim && now < max(m.base, m.claimWait()):
		m.refuse(errors.New("a claim is sent before another process must have stopped"))
	case a.Op == HandOver && m.release == nil:
		m.refuse(errors.New("a lease is given away that this candidate does not give away"))
	}
	m.busy, m.basedOn = a.Op, versionOf(m.lease)
	if a.Op.stamps() {
		m.remember(*a.Object.Spec.RenewTime)
	}
}

// stamps reports whether a request writes a new renewTime to the Lease.
func (o Op) stamps() bool { return o == Claim || o == Renew || o == HandOver }

// claimWait returns until when the present holder may lead.
func (m *Machine) claimWait() time.Duration {
	if m.mine() {
		return m.base
	}
	return m.freeAt()
}

// watchBegan updates m after a watch began without a version. If there is no Lease, a
// read after the beginning of the watch shows that the watch misses nothing from then on.
func (m *Machine) watchBegan(now time.Duration) {
	m.blind, m.blindSince = true, now
	if m.sure == certain && m.lease == nil {
		m.sure = unconfirmed
	}
}

// observe updates m from a sighting of the Lease: l is the stored object, the
// object as it was when it was deleted, or nil if there is none.
func (m *Machine) observe(now Instant, l *coordinationv1.Lease, deleted bool, from source) {
	if spec.Older(versionOf(l), versionOf(m.lease)) {
		return
	}
	if deleted && l != nil {
		l, m.buried = nil, l.UID
	}
	m.accept(now, l, from)
}

// accept is observe for a Lease that is certainly the stored one.
func (m *Machine) accept(now Instant, l *coordinationv1.Lease, from source) {
	was, known := m.pulse, m.known
	m.settled = m.settled || l != nil
	m.assignable = m.Coordinated && m.phase == Standby
	if m.see(now.Mono, l, from) {
		if m.holds() || known && from != unrelated && m.showsLeader(was) {
			m.led = now.Mono
		}
		m.draw = m.Random()
		if m.heldByAnother() {
			m.conflicts = 0 // another process is alive and caused them
		}
	}
	if to := m.pulse.Holder; to != was.Holder {
		m.tell(LeaderChanged{From: was.Holder, To: to})
	}
	if m.holds() {
		// A renewal that this process did not write is that of a twin: another
		// process with the same identity and term.
		if !m.pulse.SameTerm(m.term.pulse) || l.Spec.RenewTime != nil && !m.wrote(l) {
			m.becomeEnded(now.Mono, Lost)
		}
	}
	m.registry.observed(now.Mono)
}

// showsLeader reports whether the Lease, whose pulse was another before, shows that a leader
// was alive. A claim of this candidate does not: it may be observed before its answer, or
// without one, and its term begins with the answer. Neither does an assignment.
func (m *Machine) showsLeader(was spec.Pulse) bool {
	switch l := m.lease; {
	case l == nil:
		return false
	case m.mine(): // its claim removes the mark of a hand-over
		return m.term != nil || l.Annotations[handoverAnnotation] != ""
	case m.pulse.Holder == "":
		return isReleased(l)
	case m.Coordinated && begun(l) && !isMarked(l):
		return false
	}
	return was.Renewed != m.pulse.Renewed // else it was edited
}

// answered updates m after a request.
func (m *Machine) answered(now Instant, e Answered[*coordinationv1.Lease]) {
	if e.Op != m.busy {
		m.refuse(fmt.Errorf("%q is answered while %q is under way", e.Op, m.busy))
	}
	m.busy = ""
	based := m.basedOn
	m.basedOn = ""
	if e.Op == Read {
		m.readDone(now, e, based)
	} else {
		m.writeDone(now, e, based)
	}
}

// readDone updates m after a GET.
func (m *Machine) readDone(now Instant, e Answered[*coordinationv1.Lease], based string) {
	l := e.Object
	switch {
	case e.Answer == OK:
	case e.Answer == Missing:
		l = nil
	case e.Answer == Cancelled && m.stopping:
		return // by us
	default:
		m.failed(&m.failures, now.Mono, now.Mono-e.At.Mono, e.RetryAfter)
		return
	}
	from := afterGap
	if l == nil && m.sure == uncertain && m.denials+m.conflicts > 0 {
		// If there was no Lease before the write that failed either, there may have been
		// one in between, and its holder may still lead.
		from = unrelated
	}
	blind := m.blind
	m.blind = m.blind && e.At.Mono < m.blindSince
	m.settled = m.settled || m.polling || blind && !m.blind
	m.sure = certain
	if m.blind && l == nil {
		m.sure = unconfirmed
	}
	m.failures, m.lastRead = 0, now.Mono
	m.readAt = now.Mono + m.readInterval()
	// If the holder seemed to be silent and is not, the watch is stale.
	if m.held > 0 && now.Mono >= m.held && spec.PulseOf(l) != m.pulse {
		m.stream++
	}
	if known := versionOf(m.lease); known == based && spec.Older(versionOf(l), known) {
		// The read was sent after the last observation, so versions have gone
		// back: the API server was restored from a backup. A watch from the known
		// version would deliver nothing for long.
		m.stream++
		m.accept(now, l, unrelated)
		return
	}
	m.observe(now, l, false, from)
}

// readInterval draws the time until the next read of a Lease that is not watched.
func (m *Machine) readInterval() time.Duration {
	if m.polling && !m.registry.observer() {
		return m.poll
	}
	return time.Duration((0.5 + m.Random()) * 2 * float64(m.LeaseDuration))
}

// writeDone updates m after a write.
func (m *Machine) writeDone(now Instant, e Answered[*coordinationv1.Lease], based string) {
	switch {
	case e.Answer == OK:
		m.failures, m.denials, m.conflicts, m.retryAt = 0, 0, 0, 0
		m.stored(now, e)
		return
	case e.Answer == Conflict, e.Answer == Missing && based != "":
		// Another client was faster. If the watch has delivered its write, a GET
		// is not needed. 404 to a POST is about the namespace.
		m.mustRead(versionOf(m.lease) == based)
		m.retryAt = now.Mono + m.delay(now.Mono, m.conflicts, 0)
		m.conflicts++
	default:
		m.mustRead(e.Unsure && e.Op != Renew)
		m.failed(&m.denials, now.Mono, now.Mono-e.At.Mono, e.RetryAfter)
	}
	if e.Op == Publish {
		// Only preference depends on a record, so there is no hurry.
		m.registry.postpone(max(m.retryAt, now.Mono+spec.Retry(max(m.denials, m.conflicts), HintRetry, m.Random(), 0)))
		m.retryAt = 0
	}
}

// mustRead requires a read before the next write, if unknown: the effect of the last one
// is not known.
func (m *Machine) mustRead(unknown bool) {
	if unknown {
		m.sure = uncertain
	}
}

// failed counts a request that failed, and schedules the next one.
func (m *Machine) failed(count *int, now, took, asked time.Duration) {
	*count++
	m.retryAt = now + m.delay(now, *count, asked)
	if m.holds() && took >= minCall {
		m.retryAt = now // that was long enough
	}
}

// delay returns the wait after failures. A leader leaves time for another try, and
// ignores Retry-After: the request is small, and the term is at stake.
func (m *Machine) delay(now time.Duration, failures int, asked time.Duration) time.Duration {
	switch {
	case failures <= 0:
		return 0
	case m.holds():
		return max(minRetry, min(spec.Retry(failures, LeaderRetry, m.Random(), 0), (m.term.deadline-now)/2))
	}
	return spec.Retry(failures, StandbyRetry, m.Random(), asked)
}

// stored updates m after a successful write.
func (m *Machine) stored(now Instant, e Answered[*coordinationv1.Lease]) {
	if m.isBuried(e.Object.UID) {
		return // and deleted, which the watch has delivered before this answer
	}
	switch e.Op {
	case Claim:
		m.claimed(now, e.At, e.Object)
		return
	case Renew:
		m.renewed(now, e.At, e.Object)
		return
	case HandOver:
		m.release = nil
	}
	m.observe(now, e.Object, false, inOrder)
	m.registry.stored(now.Mono, e.Op)
}

// claimed begins a term, if the answer came in time.
func (m *Machine) claimed(now, sent Instant, l *coordinationv1.Lease) {
	m.observe(now, l, false, inOrder)
	deadline := sent.Mono + m.RenewDeadline
	if !m.mine() && versionOf(m.lease) == versionOf(l) {
		m.retryAt = now.Mono + StandbyRetry // another component alters writes
	}
	if !m.mine() || m.phase != Standby || now.Mono >= deadline || now.Drift()-sent.Drift() > MaxDrift {
		return // too late, also for having been suspended: the next step claims again
	}
	if m.stopping {
		m.release = &release{pulse: m.pulse, until: deadline}
		return
	}
	m.becomeLeading(now.Mono, &term{
		pulse: m.pulse, began: now.Mono, sent: sent, deadline: deadline,
		renewAt: m.renewalAfter(sent.Mono), token: tokenOf(m.lease),
	})
}

// renewed moves the deadline of the term.
func (m *Machine) renewed(now, sent Instant, l *coordinationv1.Lease) {
	m.observe(now, l, false, inOrder)
	if !m.holds() {
		return
	}
	m.term.sent, m.term.deadline = sent, sent.Mono+m.RenewDeadline
	m.term.renewAt = m.renewalAfter(sent.Mono)
	m.tell(TermExtended{Sent: sent, Deadline: m.term.deadline})
	m.registry.stored(now.Mono, Renew)
}

// renewalAfter draws the time of the renewal that follows one at t.
func (m *Machine) renewalAfter(t time.Duration) time.Duration {
	spread := (2*m.Random() - 1) * RenewJitter
	return t + m.RenewInterval + time.Duration(spread*float64(m.RenewInterval))
}

// Check returns an error that names a broken invariant, or nil.
func (m *Machine) Check() error {
	t := m.term
	for _, invariant := range []struct {
		holds bool
		text  string
	}{
		{(t != nil) == (m.holds() || m.phase == Ended), "there is a term in the phases Leading, Draining and Ended, and in no other"},
		{!m.holds() || t == nil || m.pulse.SameTerm(t.pulse), "in the phases Leading and Draining the observed Lease is of the term"},
		{m.release == nil || m.phase == Standby, "a lease is given away in phase Standby only, when the work has returned"},
		{m.busy != "" || m.basedOn == "", "there is a version only with a request"},
		{t == nil || t.deadline == t.sent.Mono+m.RenewDeadline, "the deadline counts from the send of the last renewal, or of the claim"},
		{t == nil || (t.cause == NoCause) == (m.phase == Leading), "the context of the work is cancelled if and only if there is a cause"},
		{(m.stopBy != Never) == (m.stopping && (m.phase == Standby || m.phase == Finished)), "ShutdownTimeout begins when Run ends and the work has returned"},
		{m.phase != Finished || m.stopping, "only the end of Run finishes"},
	} {
		if !invariant.holds {
			return errors.New("election: broken invariant: " + invariant.text)
		}
	}
	if err := errors.Join(m.broken, m.sighting.check(), m.registry.check()); err != nil {
		return fmt.Errorf("election: broken invariant: %w", err)
	}
	return nil
}
