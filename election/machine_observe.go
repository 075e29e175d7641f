// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
)

// observe takes in what a watch or a request has shown of the Lease: the
// object as it is, or as it was when it was deleted, or nil for absent.
func (m *machine) observe(now instant, l *coordinationv1.Lease, deleted bool) {
	if spec.Older(resourceVersionOf(l), resourceVersionOf(m.lease)) {
		return
	}
	if deleted {
		l = nil
	}
	m.accept(now, l)
}

// accept takes in the Lease as it is, nil for absent.
func (m *machine) accept(now instant, l *coordinationv1.Lease) {
	from, known := holderOf(m.lease), m.known
	if m.see(now.mono, l, m.id, m.timing.LeaseDuration) {
		m.draw = m.random()
		if holder := holderOf(l); holder != "" && holder != m.id {
			m.conflicts = 0 // somebody is alive, so that is why
		}
	}
	if to := holderOf(l); to != from || !known && to != "" {
		m.standing = nil
		m.tell(LeaderChanged{From: from, To: to})
	}
	if m.phase == leading || m.phase == draining {
		if !sameTerm(pulseIn(l), m.term.pulse) {
			m.endTerm(now.mono, ErrLost)
		}
	}
	m.lookAtRecords(now.mono)
}

// sameTerm reports whether two sightings are of one term.
func sameTerm(a, b pulseOf) bool {
	return a.uid == b.uid && a.holder == b.holder && a.transitions == b.transitions
}

// readDone takes in the answer to a GET.
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
	// Where the holder seemed to be silent and is not, the watch is.
	silent := m.known && m.held > 0 && now.mono >= m.held
	m.watchStale = m.watchStale || silent && pulseIn(l) != pulseIn(m.lease)
	if m.watching() && m.overwritten(l) {
		// The watch has not shown it, so it may not have shown the last renewal
		// of that holder either.
		m.base = max(m.base, now.mono+durationOf(m.lease, m.timing.LeaseDuration))
	}
	if known := resourceVersionOf(m.lease); known == m.basedOn && spec.Older(resourceVersionOf(l), known) {
		// It was asked for after what is known was seen, so versions have gone
		// back: the API server was restored from a backup. A watch from where we
		// were would bring nothing for long.
		m.watchStale = true
		m.accept(now, l)
		return
	}
	m.observe(now, l, false)
}

// overwritten reports whether somebody has taken the lease from its holder, and
// left it to us or to nobody.
func (m *machine) overwritten(l *coordinationv1.Lease) bool {
	from, to := holderOf(m.lease), holderOf(l)
	return from != "" && from != m.id && (to == "" || to == m.id) && !given(m.lease, l)
}

// writeDone takes in the answer to a write: the Lease as it was stored.
func (m *machine) writeDone(now, sent instant, op Op, l *coordinationv1.Lease, err error) {
	m.busy = ""
	class := apierr.Classify(err)
	if op == OpPublish && class == apierr.Forbidden && !m.noPatch {
		m.noPatch = true // then as an update
		return
	}
	switch class {
	case apierr.None:
		m.failures, m.denials, m.conflicts, m.retryAt = 0, 0, 0, 0
		m.stored(now, sent, op, l)
		return
	case apierr.Conflict, apierr.AlreadyExists, apierr.NotFound:
		// Somebody was faster. What the watch has brought meanwhile is newer
		// than what was written, and saves a GET.
		m.conflicts++
		m.reread = m.reread || resourceVersionOf(m.lease) == m.basedOn
		m.retryAt = now.mono + retries().Delay(m.conflicts-1)
		if m.phase == leading || m.phase == draining {
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

// failed counts a request that failed after some time among its like, and says
// when the next may be sent.
func (m *machine) failed(count *int, now, took time.Duration, err error) {
	*count++
	if m.phase == leading || m.phase == draining {
		delay := m.leaderDelay(now, *count)
		if took >= minCall {
			delay = 0 // that was long enough
		}
		m.retryAt = now + delay
		return
	}
	m.retryAt = now + max(retries().Delay(*count), apierr.RetryAfter(err))
}

// leaderDelay is how long a leader waits after so many failures: never so long
// that no time is left, nor so short that it would never come to its end. It does not wait for what Retry-After asks: it is one
// small request, and the term is at stake.
func (m *machine) leaderDelay(now time.Duration, failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	delay := backoff.Policy{Base: retryMin, Cap: retryMax}.Delay(failures)
	return max(retryLeast, min(delay, (m.term.deadline-now)/2))
}

// stored takes in a write that succeeded.
func (m *machine) stored(now, sent instant, op Op, l *coordinationv1.Lease) {
	switch op {
	case OpClaim:
		m.claimed(now, sent, l)
	case OpRenew:
		m.renewed(now, sent, l)
	case OpHandOver:
		m.giving = nil
		m.observe(now, l, false)
	case OpPublish, OpWithdraw:
		m.observe(now, l, false)
	}
	if op == OpPublish {
		m.recordStored(now.mono)
	}
	if _, there := m.records[m.id]; op == OpPublish && !there || op == OpWithdraw && there {
		// Somebody alters what is written, such as a webhook.
		m.published.retryAt = now.mono + changeGap
		m.withdrawals++
	}
}

// notStored takes in a write that failed, for good or not.
func (m *machine) notStored(now time.Duration, op Op) {
	switch op {
	case OpWithdraw:
		m.withdrawals++
	case OpPublish:
		m.published.retryAt, m.retryAt = m.retryAt, 0
	}
}

// claimed begins a term, if the answer came in time.
func (m *machine) claimed(now, sent instant, l *coordinationv1.Lease) {
	vacant := time.Duration(0)
	if m.known && m.lease != nil {
		vacant = now.mono - m.pulse
	}
	m.observe(now, l, false)
	deadline := sent.mono + m.timing.RenewDeadline
	if !m.mine() && resourceVersionOf(m.lease) == resourceVersionOf(l) {
		m.retryAt = now.mono + retries().Cap // somebody alters what is written
	}
	if !m.mine() || m.phase != standby || now.mono >= deadline || now.drift()-sent.drift() > maxDrift {
		return // too late, also for having been suspended: the next step claims again
	}
	if m.stopping {
		m.giving = &giving{pulse: pulseIn(m.lease), until: deadline}
		return
	}
	m.giving = nil
	m.recordStored(now.mono)
	m.phase = leading
	m.suspects = make(map[string]suspicion)
	m.term = termState{
		pulse: pulseIn(m.lease), began: now.mono, sent: sent, deadline: deadline,
		renewAt: m.renewalAfter(sent.mono), token: tokenOf(m.lease),
	}
	m.tell(TermStarted{Token: m.term.token, Transitions: transitionsOf(m.lease), Vacant: vacant})
	m.tell(beginWork{sent: sent, deadline: deadline})
}

// renewed moves the deadline of the term.
func (m *machine) renewed(now, sent instant, l *coordinationv1.Lease) {
	m.observe(now, l, false)
	if m.phase != leading && m.phase != draining {
		return
	}
	m.term.sent = sent
	m.term.deadline = sent.mono + m.timing.RenewDeadline
	m.term.renewAt = m.renewalAfter(sent.mono)
	m.tell(extendWork{sent: sent, deadline: m.term.deadline})
	m.recordStored(now.mono)
	m.offerStored(now.mono)
}

// renewalAfter draws when to renew what was renewed at t.
func (m *machine) renewalAfter(t time.Duration) time.Duration {
	spread := (2*m.random() - 1) * renewJitter
	return t + m.timing.RenewInterval + time.Duration(spread*float64(m.timing.RenewInterval))
}

// sighting is what a candidate knows of the Lease, and since when, by its own
// clock. Times of other machines are compared for equality only.
type sighting struct {
	known bool
	lease *coordinationv1.Lease // nil where it does not exist; never changed
	// pulse is when something changed that shows who holds the lease, and that
	// they are alive.
	pulse time.Duration
	// held is until when the holder may lead, which is somebody else; base is
	// until when one before may, who has not given the lease away.
	held, base time.Duration
}

// pulseOf is the part of a Lease whose changes show that the holder is alive. Not the
// resourceVersion: annotations change as well.
type pulseOf struct {
	uid         types.UID
	holder      string
	transitions int32
	renewed     metav1.MicroTime
	duration    int32
}

func pulseIn(l *coordinationv1.Lease) pulseOf {
	if l == nil {
		return pulseOf{}
	}
	p := pulseOf{uid: l.UID, holder: holderOf(l), transitions: transitionsOf(l)}
	if l.Spec.RenewTime != nil {
		p.renewed = *l.Spec.RenewTime
	}
	if l.Spec.LeaseDurationSeconds != nil {
		p.duration = *l.Spec.LeaseDurationSeconds
	}
	return p
}

func transitionsOf(l *coordinationv1.Lease) int32 {
	if l == nil || l.Spec.LeaseTransitions == nil {
		return 0
	}
	return *l.Spec.LeaseTransitions
}

// durationOf returns for how long the lease is held after a pulse. A lease that
// does not say it is held for as long as one of ours would be.
func durationOf(l *coordinationv1.Lease, def time.Duration) time.Duration {
	if l == nil || l.Spec.LeaseDurationSeconds == nil {
		return def
	}
	return max(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second, time.Second)
}

// releaseSeconds is the leaseDurationSeconds of a lease that its holder has
// released, as client-go does as well.
const releaseSeconds = 1

// given reports whether the holder of before has given the lease away, so that
// it does not lead any more, and after is what came of it.
func given(before, after *coordinationv1.Lease) bool {
	if after == nil || before == nil || after.UID != before.UID {
		return false
	}
	switch holder := holderOf(after); {
	case holder == "":
		return after.Spec.LeaseDurationSeconds != nil && *after.Spec.LeaseDurationSeconds <= releaseSeconds
	case holder == holderOf(before):
		return false
	default:
		return after.Annotations[handoverAnnotation] == holderOf(before)
	}
}

// see takes in what the Lease is like now, nil for absent, for a candidate of
// the given identity. It reports whether that is a pulse. What is older than
// what was seen before must not come here.
func (s *sighting) see(now time.Duration, l *coordinationv1.Lease, self string, def time.Duration) bool {
	before := s.lease
	first := !s.known
	s.known, s.lease = true, l
	if !first && pulseIn(before) == pulseIn(l) {
		return false
	}
	s.pulse = now
	holder := holderOf(l)
	if !first && holder != holderOf(before) || before != nil && l != nil && before.UID != l.UID {
		// Whoever it was may still lead, until its time is over or it says
		// that it does not. What this candidate does itself it knows.
		if !given(before, l) && s.held > s.base {
			s.base = s.held
		}
		s.held = 0
	}
	switch {
	case holder != "" && holder != self:
		// Within a term nobody shortens what is promised but somebody else, of
		// whom the holder may not have heard.
		promised := durationOf(l, def)
		if before != nil && sameTerm(pulseIn(before), pulseIn(l)) {
			promised = max(promised, durationOf(before, def))
		}
		s.held = max(s.held, now+promised)
	case holder == "" && first && l != nil && l.Spec.RenewTime != nil && durationOf(l, 0) > releaseSeconds*time.Second:
		s.base = now + durationOf(l, 0) // somebody has emptied it, maybe just now
	}
	return true
}

// freeAt returns from when on nobody else leads, by all that was seen.
func (s *sighting) freeAt() time.Duration {
	if holderOf(s.lease) == "" {
		return max(s.base, s.held, s.pulse)
	}
	return max(s.base, s.held)
}
