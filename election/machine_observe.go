// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
)

// watchBegan updates m after a watch began without a version. If there is no Lease, a
// read after the beginning of the watch shows that the watch misses nothing from then on.
func (m *machine) watchBegan(now time.Duration) {
	m.blind, m.blindSince = true, now
	if !m.reread && m.lease == nil {
		m.reread, m.confirms = true, true
	}
}

// watched updates m from an event of the watch.
func (m *machine) watched(now instant, l *coordinationv1.Lease, deleted bool) {
	from := inOrder
	if m.blind {
		from, m.blind = afterGap, false
	}
	m.observe(now, l, deleted, from)
}

// observe updates m from a sighting of the Lease: l is the stored object, the
// object as it was when it was deleted, or nil if there is none.
func (m *machine) observe(now instant, l *coordinationv1.Lease, deleted bool, from source) {
	if spec.Older(versionOf(l), versionOf(m.lease)) {
		return
	}
	if deleted {
		l = nil
	}
	m.accept(now, l, from)
}

// accept is observe for a Lease that is certainly the stored one.
func (m *machine) accept(now instant, l *coordinationv1.Lease, from source) {
	before, known := spec.HolderOf(m.lease), m.known
	m.settled = m.settled || l != nil
	m.assignable = m.Registry.native && m.phase == standby
	if m.see(now.mono, l, from) {
		m.draw = m.random()
		if holder := spec.HolderOf(l); holder != "" && holder != m.id {
			m.conflicts = 0 // another process is alive and caused them
		}
	}
	if to := spec.HolderOf(l); to != before || !known && to != "" {
		m.tell(LeaderChanged{From: before, To: to})
	}
	if m.holds() {
		// A renewal that this process did not write is that of a twin: another
		// process with the same identity and term.
		if !spec.PulseOf(l).SameTerm(m.term.pulse) || l.Spec.RenewTime != nil && !m.wrote(l) {
			m.endTerm(now.mono, ErrLost)
		}
	}
	m.readRecords(now.mono)
}

// readDone updates m after a GET.
func (m *machine) readDone(now, sent instant, l *coordinationv1.Lease, err error) {
	m.busy = ""
	switch class := apierr.Classify(err); {
	case class == apierr.None:
	case class == apierr.NotFound:
		l = nil
	case class == apierr.Canceled && m.stopping:
		return // by us
	default:
		m.failed(&m.failures, now.mono, now.mono-sent.mono, err)
		return
	}
	from := afterGap
	if l == nil && m.reread && !m.confirms && m.denials+m.conflicts > 0 {
		// If there was no Lease before the write that failed either, there may have been
		// one in between, and its holder may still lead.
		from = unrelated
	}
	blind := m.blind
	m.blind = m.blind && sent.mono < m.blindSince
	m.settled = m.settled || m.polling || blind && !m.blind
	m.confirms = m.blind && l == nil
	m.reread, m.failures, m.lastRead = m.confirms, 0, now.mono
	if m.conflicts == 0 {
		m.retryAt = 0
	}
	m.readAt = now.mono + m.readInterval()
	// If the holder seemed to be silent and is not, the watch is stale.
	silent := m.known && m.held > 0 && now.mono >= m.held
	m.watchStale = m.watchStale || silent && spec.PulseOf(l) != spec.PulseOf(m.lease)
	if known := versionOf(m.lease); known == m.basedOn && spec.Older(versionOf(l), known) {
		// The read was sent after the last observation, so versions have gone
		// back: the API server was restored from a backup. A watch from the known
		// version would deliver nothing for long.
		m.watchStale = true
		m.accept(now, l, unrelated)
		return
	}
	m.observe(now, l, false, from)
}

// writeDone updates m after a write. l is the stored Lease.
func (m *machine) writeDone(now, sent instant, op Op, l *coordinationv1.Lease, err error) {
	m.busy = ""
	switch class := apierr.Classify(err); {
	case class == apierr.None:
		m.failures, m.denials, m.conflicts, m.retryAt = 0, 0, 0, 0
		m.stored(now, sent, op, l)
		return
	case class == apierr.Conflict, class == apierr.AlreadyExists, class == apierr.NotFound && m.basedOn != "":
		// Another client was faster. If the watch has delivered its write, a GET
		// is not needed. 404 to a POST is about the namespace.
		m.mustRead(versionOf(m.lease) == m.basedOn)
		m.retryAt = now.mono + m.delay(now.mono, m.conflicts, nil)
		m.conflicts++
	default:
		m.mustRead(apierr.MayHaveCommitted(err) && op != OpRenew)
		m.failed(&m.denials, now.mono, now.mono-sent.mono, err)
	}
	if op == OpPublish {
		// Only preference depends on a record, so there is no hurry.
		m.published.retryAt, m.retryAt = max(m.retryAt, now.mono+spec.Retry(max(m.denials, m.conflicts), hintRetry, nil)), 0
	}
}

// mustRead requires a read before the next write, if unknown: the effect of the last one
// is not known.
func (m *machine) mustRead(unknown bool) {
	if unknown {
		m.reread, m.confirms = true, false
	}
}

// failed counts a request that failed, and schedules the next one.
func (m *machine) failed(count *int, now, took time.Duration, err error) {
	*count++
	m.retryAt = now + m.delay(now, *count, err)
	if m.holds() && took >= minCall {
		m.retryAt = now // that was long enough
	}
}

// delay returns the wait after failures. A leader leaves time for another try, and
// ignores Retry-After: the request is small, and the term is at stake.
func (m *machine) delay(now time.Duration, failures int, err error) time.Duration {
	switch {
	case failures <= 0:
		return 0
	case m.holds():
		return max(minRetry, min(spec.Retry(failures, leaderRetry, nil), (m.term.until()-now)/2))
	}
	return spec.Retry(failures, standbyRetry, err)
}

// stored updates m after a successful write.
func (m *machine) stored(now, sent instant, op Op, l *coordinationv1.Lease) {
	switch op {
	case OpClaim:
		m.claimed(now, sent, l)
		return
	case OpRenew:
		m.renewed(now, sent, l)
		return
	case OpHandOver:
		m.release = nil
	}
	m.observe(now, l, false, inOrder)
	_, there := m.records[m.id]
	switch {
	case op == OpPublish && there:
		m.recordStored(now.mono)
	case op == OpPublish, op == OpWithdraw && there:
		// Another component, such as a webhook, alters writes.
		m.published.retryAt = now.mono + changeGap
		if m.stopping {
			m.retryAt = now.mono + standbyRetry
		}
	}
}

// claimed begins a term, if the answer came in time.
func (m *machine) claimed(now, sent instant, l *coordinationv1.Lease) {
	vacant := time.Duration(0)
	if m.known && m.lease != nil {
		vacant = now.mono - m.pulseAt
	}
	m.observe(now, l, false, inOrder)
	deadline := sent.mono + m.Timing.RenewDeadline
	if !m.mine() && versionOf(m.lease) == versionOf(l) {
		m.retryAt = now.mono + standbyRetry // another component alters writes
	}
	if !m.mine() || m.phase != standby || now.mono >= deadline || now.drift()-sent.drift() > maxDrift {
		return // too late, also for having been suspended: the next step claims again
	}
	if m.stopping {
		m.release = &release{pulse: spec.PulseOf(m.lease), until: deadline}
		return
	}
	m.release = nil
	m.recordStored(now.mono)
	m.phase = leading
	m.doubts = make(map[string]doubt)
	m.term = &term{
		pulse: spec.PulseOf(m.lease), began: now.mono, sent: sent, deadline: deadline,
		renewAt: m.renewalAfter(sent.mono), token: tokenOf(m.lease),
	}
	m.tell(TermStarted{Token: m.term.token, Transitions: spec.TransitionsOf(m.lease), Vacant: vacant})
}

// renewed moves the deadline of the term.
func (m *machine) renewed(now, sent instant, l *coordinationv1.Lease) {
	m.observe(now, l, false, inOrder)
	if !m.holds() {
		return
	}
	if !m.term.extend(now.mono, sent, sent.mono+m.Timing.RenewDeadline) {
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
	return t + m.Timing.RenewInterval + time.Duration(spread*float64(m.Timing.RenewInterval))
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
	// longest is the longest duration that the Lease had since the last renewal, which
	// states that of the holder. Between two renewals only another client shortens it,
	// and the holder may not have observed that.
	longest time.Duration
	// exclusive says that a predecessor, which no longer runs, may have used the same
	// identity.
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
	// afterGap: by a read, or by the first event of a watch that began without a
	// version. Other states, and other terms, may have been missed.
	afterGap
	// unrelated: by a read that shows an older resourceVersion, because the API server
	// was restored from a backup, or no Lease after a claim that failed. Terms may
	// have been missed even if the state is the same as before.
	unrelated
)

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
	return spec.HolderOf(l) == "" && begun(l) && spec.DurationOf(l, 0) <= releaseSeconds*time.Second
}

// isMarked reports whether the holder of the Lease was named by a claim or a hand-over,
// and not by an edit over another holder: the mark names the holder and its term.
func isMarked(l *coordinationv1.Lease) bool { return l.Annotations[termAnnotation] == markOf(l) }

// markOf returns the value of termAnnotation for the holder and term of a Lease.
func markOf(l *coordinationv1.Lease) string {
	return fmt.Sprintf("%d %s", spec.TransitionsOf(l), spec.HolderOf(l))
}

// handedOver reports whether the holder of before has given the lease away, so that
// it no longer leads, and after is the result.
func handedOver(before, after *coordinationv1.Lease) bool {
	if after == nil || before != nil && after.UID != before.UID {
		return false
	}
	from, to := spec.HolderOf(before), spec.HolderOf(after)
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
	if !first && from != unrelated && spec.PulseOf(before) == spec.PulseOf(l) {
		return false
	}
	s.pulseAt = now
	if first {
		holder := spec.HolderOf(l)
		emptied := holder == "" && l != nil && l.Spec.RenewTime != nil && !isReleased(l)
		// A coordinator assigns with a duration of its own. Until the holder renews, it
		// may wait for an earlier leader, which had the duration of the candidates. The
		// one in the API server leaves acquireTime empty, so its holder may have renewed.
		assigned := s.assignable && holder != "" && holder != s.me && (begun(l) || l.Spec.AcquireTime == nil) && spec.DurationOf(l, s.def) < s.def
		if emptied || assigned || holder == s.me && !(s.exclusive && isMarked(l)) {
			s.base = now + max(spec.DurationOf(l, s.def), s.def) // maybe edited just now
		}
	} else {
		s.protectHolder(now, before, l, from)
	}
	switch was, is := spec.PulseOf(before), spec.PulseOf(l); {
	case !was.SameTerm(is):
		s.longest = 0
	case was.Renewed != is.Renewed:
		s.longest = spec.DurationOf(before, 0) // it may have been shortened after the renewal
	}
	s.longest = max(s.longest, spec.DurationOf(l, 0))
	if holder := spec.HolderOf(l); holder != "" && holder != s.me {
		s.held = max(s.held, now+max(s.longest, spec.DurationOf(l, s.def)))
	}
	return true
}

// protectHolder raises base for a holder that may still lead although l no longer
// names it.
func (s *sighting) protectHolder(now time.Duration, before, l *coordinationv1.Lease, from source) {
	holder, previous := spec.HolderOf(l), spec.HolderOf(before)
	vacated := holder == "" || holder == s.me
	// A write under our identity that is not ours is that of a twin, unless a
	// coordinator may have assigned the lease to us again.
	twin := holder == s.me && previous == s.me && !s.wrote(l) && !(s.assignable && begun(l))
	switch {
	case from != unrelated && handedOver(before, l):
	case from == unrelated, from == afterGap && vacated && !s.wrote(l), twin:
		// A holder that was missed renewed before this state was stored, or its
		// renewal fails: the resourceVersion has changed since.
		s.base = max(s.base, s.held, now+max(s.longest, spec.DurationOf(l, 0), s.def))
	case holder != previous || before != nil && l != nil && before.UID != l.UID:
		s.base = max(s.base, s.held)
	default:
		return
	}
	s.held = 0
}

// freeAt returns from when on no other process leads, as far as was observed.
func (s *sighting) freeAt() time.Duration {
	if spec.HolderOf(s.lease) == "" {
		return max(s.base, s.held, s.pulseAt)
	}
	return max(s.base, s.held)
}
