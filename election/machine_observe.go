// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
)

// observe updates m from a sighting of the Lease: l is the stored object, the
// object as it was when it was deleted, or nil if there is none.
func (m *machine) observe(now instant, l *coordinationv1.Lease, deleted bool, from source) {
	if spec.Older(resourceVersionOf(l), resourceVersionOf(m.lease)) {
		return
	}
	if deleted {
		l = nil
	}
	m.accept(now, l, from)
}

// accept is observe for a Lease that is certainly the stored one.
func (m *machine) accept(now instant, l *coordinationv1.Lease, from source) {
	before, known := holderOf(m.lease), m.known
	m.assignable = m.native && m.phase == standby
	if m.see(now.mono, l, from) {
		m.draw = m.random()
		if holder := holderOf(l); holder != "" && holder != m.id {
			m.conflicts = 0 // another process is alive and caused them
		}
	}
	if to := holderOf(l); to != before || !known && to != "" {
		m.tell(LeaderChanged{From: before, To: to})
	}
	if m.holds() {
		// A renewal that this process did not write is that of a twin: another
		// process with the same identity and term.
		if !sameTerm(pulseOf(l), m.term.pulse) || l.Spec.RenewTime != nil && !m.wrote(l) {
			m.endTerm(now.mono, ErrLost)
		}
	}
	m.readRecords(now.mono)
}

// readDone updates m after a GET.
func (m *machine) readDone(now, sent instant, l *coordinationv1.Lease, err error) {
	unwanted := m.unwanted(now.mono)
	m.busy = ""
	switch class := apierr.Classify(err); {
	case class == apierr.None:
	case class == apierr.NotFound:
		l = nil
	case class == apierr.Canceled && unwanted:
		return // by us
	default:
		m.failed(&m.failures, now.mono, now.mono-sent.mono, err)
		return
	}
	m.reread, m.failures, m.lastRead = false, 0, now.mono
	if m.conflicts == 0 {
		m.retryAt = 0
	}
	m.readAt = now.mono + m.readInterval()
	// If the holder seemed to be silent and is not, the watch is stale.
	silent := m.known && m.held > 0 && now.mono >= m.held
	m.watchStale = m.watchStale || silent && pulseOf(l) != pulseOf(m.lease)
	if known := resourceVersionOf(m.lease); known == m.basedOn && spec.Older(resourceVersionOf(l), known) {
		// The read was sent after the last observation, so versions have gone
		// back: the API server was restored from a backup. A watch from the known
		// version would deliver nothing for long.
		m.watchStale = true
		m.accept(now, l, restored)
		return
	}
	m.observe(now, l, false, afterGap)
}

// writeDone updates m after a write. l is the stored Lease.
func (m *machine) writeDone(now, sent instant, op Op, l *coordinationv1.Lease, err error) {
	m.busy = ""
	class := apierr.Classify(err)
	switch class {
	case apierr.None:
		m.failures, m.denials, m.conflicts, m.retryAt = 0, 0, 0, 0
		m.stored(now, sent, op, l)
		return
	case apierr.Conflict, apierr.AlreadyExists, apierr.NotFound:
		// Another client was faster. If the watch has delivered its write, a GET
		// is not needed.
		m.conflicts++
		m.reread = m.reread || resourceVersionOf(m.lease) == m.basedOn
		m.retryAt = now.mono + spec.Retry(m.conflicts-1, standbyRetry, nil)
		if m.holds() {
			m.retryAt = min(m.retryAt, now.mono+m.leaderDelay(now.mono, m.conflicts-1))
		}
	default:
		if apierr.MayHaveCommitted(err) && op != OpRenew {
			m.reread = true
		}
		m.failed(&m.denials, now.mono, now.mono-sent.mono, err)
	}
	m.notStored(now.mono, op)
}

// failed counts a request that failed, and schedules the next one.
func (m *machine) failed(count *int, now, took time.Duration, err error) {
	*count++
	if m.holds() {
		delay := m.leaderDelay(now, *count)
		if took >= minCall {
			delay = 0 // that was long enough
		}
		m.retryAt = now + delay
		return
	}
	m.retryAt = now + spec.Retry(*count, standbyRetry, err)
}

// leaderDelay returns the wait of a leader after failures. It leaves time for another
// try, and ignores Retry-After: the request is small, and the term is at stake.
func (m *machine) leaderDelay(now time.Duration, failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	return max(minRetry, min(spec.Retry(failures, leaderRetry, nil), (m.term.until()-now)/2))
}

// stored updates m after a successful write.
func (m *machine) stored(now, sent instant, op Op, l *coordinationv1.Lease) {
	switch op {
	case OpClaim:
		m.claimed(now, sent, l)
	case OpRenew:
		m.renewed(now, sent, l)
	case OpHandOver:
		m.release = nil
		m.observe(now, l, false, inOrder)
	case OpPublish, OpWithdraw:
		m.observe(now, l, false, inOrder)
	}
	if op == OpPublish {
		m.recordStored(now.mono)
	}
	if _, there := m.records[m.id]; op == OpPublish && !there || op == OpWithdraw && there {
		// Another component, such as a webhook, alters writes.
		m.published.retryAt = now.mono + changeGap
		m.withdrawals++
	}
}

// notStored updates m after a write that failed.
func (m *machine) notStored(now time.Duration, op Op) {
	switch op {
	case OpWithdraw:
		m.withdrawals++
	case OpPublish:
		// Only preference depends on a record, so there is no hurry.
		m.published.retryAt, m.retryAt = max(m.retryAt, now+spec.Retry(max(m.denials, m.conflicts), hintRetry, nil)), 0
	}
}

// claimed begins a term, if the answer came in time.
func (m *machine) claimed(now, sent instant, l *coordinationv1.Lease) {
	vacant := time.Duration(0)
	if m.known && m.lease != nil {
		vacant = now.mono - m.pulseAt
	}
	m.observe(now, l, false, inOrder)
	deadline := sent.mono + m.timing.RenewDeadline
	if !m.mine() && resourceVersionOf(m.lease) == resourceVersionOf(l) {
		m.retryAt = now.mono + standbyRetry // another component alters writes
	}
	if !m.mine() || m.phase != standby || now.mono >= deadline || now.drift()-sent.drift() > maxDrift {
		return // too late, also for having been suspended: the next step claims again
	}
	if m.stopping {
		m.release = &release{pulse: pulseOf(m.lease), until: deadline}
		return
	}
	m.release = nil
	m.recordStored(now.mono)
	m.phase = leading
	m.doubts = make(map[string]doubt)
	m.term = &term{
		pulse: pulseOf(m.lease), began: now.mono, sent: sent, deadline: deadline,
		renewAt: m.renewalAfter(sent.mono), token: tokenOf(m.lease),
	}
	m.tell(TermStarted{Token: m.term.token, Transitions: transitionsOf(m.lease), Vacant: vacant})
	m.tell(beginWork{})
}

// renewed moves the deadline of the term.
func (m *machine) renewed(now, sent instant, l *coordinationv1.Lease) {
	m.observe(now, l, false, inOrder)
	if !m.holds() {
		return
	}
	if !m.term.extend(now.mono, sent, sent.mono+m.timing.RenewDeadline) {
		m.endTerm(now.mono, ErrExpired) // its timer was faster
		return
	}
	m.term.renewAt = m.renewalAfter(sent.mono)
	m.recordStored(now.mono)
	m.offerStored(now.mono)
}

// renewalAfter draws the time of the renewal that follows one at t.
func (m *machine) renewalAfter(t time.Duration) time.Duration {
	spread := (2*m.random() - 1) * renewJitter
	return t + m.timing.RenewInterval + time.Duration(spread*float64(m.timing.RenewInterval))
}

// sighting is the state of the Lease as this candidate has observed it. Times are
// those of its own monotonic clock. Times written by other machines are compared
// for equality only.
//
// Invariant: before freeAt, another process may still lead, as far as can be
// known from the observations.
type sighting struct {
	me  string        // the identity of this candidate
	def time.Duration // the duration of a Lease that states none

	known   bool
	lease   *coordinationv1.Lease // nil if it does not exist; never modified
	pulseAt time.Duration         // when the pulse last changed
	// held is until when the present holder, another process, may lead. base is
	// until when an earlier holder may lead that has not given the lease away.
	held, base time.Duration
	// exclusive says that a predecessor may have used the same identity.
	exclusive bool
	// assignable says that a coordinator may assign the lease to this candidate.
	assignable bool
	// written has the last renewTimes that this process sent.
	written []metav1.MicroTime
}

// maxWritten is more than the writes that can be unanswered at one time.
const maxWritten = 64

// A source says how a state of the Lease became known.
type source int

const (
	// inOrder: by the watch, or as the answer to a write with a resourceVersion.
	// No state in between was missed.
	inOrder source = iota
	// afterGap: by a read. Other states, and other terms, may have been missed.
	afterGap
	// restored: by a read that shows an older resourceVersion, because the API
	// server was restored from a backup.
	restored
)

// pulse is the part of a Lease whose changes show that the holder is alive. The
// resourceVersion is not part of it, because annotations change as well.
type pulse struct {
	uid         types.UID
	holder      string
	transitions int32
	renewed     metav1.MicroTime
	duration    int32
}

func pulseOf(l *coordinationv1.Lease) pulse {
	if l == nil {
		return pulse{}
	}
	return pulse{
		uid: l.UID, holder: holderOf(l), transitions: transitionsOf(l),
		renewed: ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{}), duration: ptr.Deref(l.Spec.LeaseDurationSeconds, 0),
	}
}

// sameTerm reports whether two pulses belong to one term.
func sameTerm(a, b pulse) bool {
	return a.uid == b.uid && a.holder == b.holder && a.transitions == b.transitions
}

// holderOf returns the holder of a Lease; nil and "" are the same.
func holderOf(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return ptr.Deref(l.Spec.HolderIdentity, "")
}

func transitionsOf(l *coordinationv1.Lease) int32 {
	if l == nil {
		return 0
	}
	return ptr.Deref(l.Spec.LeaseTransitions, 0)
}

func resourceVersionOf(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return l.ResourceVersion
}

// durationOf returns for how long the lease is held after a pulse.
func durationOf(l *coordinationv1.Lease, def time.Duration) time.Duration {
	if l == nil || l.Spec.LeaseDurationSeconds == nil {
		return def
	}
	return max(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second, time.Second)
}

// releaseSeconds is the leaseDurationSeconds of a released Lease, here and in
// client-go.
const releaseSeconds = 1

// begun reports whether acquireTime and renewTime are equal: the Lease was
// claimed, assigned or released by that write, and not renewed since.
func begun(l *coordinationv1.Lease) bool {
	return l.Spec.AcquireTime != nil && l.Spec.RenewTime != nil && l.Spec.AcquireTime.Equal(l.Spec.RenewTime)
}

// isReleased reports whether the last holder itself emptied the Lease. An edit by
// hand leaves another duration or two different times.
func isReleased(l *coordinationv1.Lease) bool {
	return holderOf(l) == "" && begun(l) && durationOf(l, 0) <= releaseSeconds*time.Second
}

// handedOver reports whether the holder of before has given the lease away, so that
// it no longer leads, and after is the result.
func handedOver(before, after *coordinationv1.Lease) bool {
	if after == nil || before != nil && after.UID != before.UID {
		return false
	}
	from, to := holderOf(before), holderOf(after)
	if to == "" {
		return isReleased(after)
	}
	return from != "" && from != to && after.Annotations[handoverAnnotation] == from
}

// wrote reports whether the last renewal of the Lease was sent by this process.
func (s *sighting) wrote(l *coordinationv1.Lease) bool {
	return l != nil && slices.ContainsFunc(s.written, func(t metav1.MicroTime) bool { return t.Equal(l.Spec.RenewTime) })
}

// see updates s from the stored Lease, nil if it does not exist. It reports
// whether the pulse has changed. States older than the last one must not be
// passed.
func (s *sighting) see(now time.Duration, l *coordinationv1.Lease, from source) bool {
	before, first := s.lease, !s.known
	s.known, s.lease = true, l
	if !first && from != restored && pulseOf(before) == pulseOf(l) {
		return false
	}
	s.pulseAt = now
	if first {
		emptied := holderOf(l) == "" && l != nil && l.Spec.RenewTime != nil && !isReleased(l)
		if emptied || holderOf(l) == s.me && !s.exclusive {
			s.base = now + max(durationOf(l, s.def), s.def) // maybe edited just now
		}
	} else {
		s.protectHolder(now, before, l, from)
	}
	if holder := holderOf(l); holder != "" && holder != s.me {
		// Within a term only another client shortens the duration, and the holder
		// may not have observed that.
		promised := durationOf(l, s.def)
		if sameTerm(pulseOf(before), pulseOf(l)) {
			promised = max(promised, durationOf(before, s.def))
		}
		s.held = max(s.held, now+promised)
	}
	return true
}

// protectHolder raises base for a holder that may still lead although l no longer
// names it.
func (s *sighting) protectHolder(now time.Duration, before, l *coordinationv1.Lease, from source) {
	holder, previous := holderOf(l), holderOf(before)
	vacated := holder == "" || holder == s.me
	// A write under our identity that is not ours is that of a twin, unless a
	// coordinator may have assigned the lease to us again.
	twin := holder == s.me && previous == s.me && !s.wrote(l) && !(s.assignable && begun(l))
	switch {
	case from != restored && handedOver(before, l):
	case from == restored, from == afterGap && vacated && !s.wrote(l), twin:
		// A holder that was missed renewed before this state was stored, or its
		// renewal fails: the resourceVersion has changed since.
		s.base = max(s.base, s.held, now+max(durationOf(before, 0), durationOf(l, 0), s.def))
	case holder != previous || before != nil && l != nil && before.UID != l.UID:
		s.base = max(s.base, s.held)
	default:
		return
	}
	s.held = 0
}

// freeAt returns from when on no other process leads, as far as was observed.
func (s *sighting) freeAt() time.Duration {
	if holderOf(s.lease) == "" {
		return max(s.base, s.held, s.pulseAt)
	}
	return max(s.base, s.held)
}
