// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// Next returns the next action after a Tick at now. It changes nothing.
func (m *Machine) Next(now Instant) Step {
	d := decision{Machine: m, alarm: m.alarm}
	op := m.busy
	if op == "" && m.phase != Finished {
		d.choose(now)
		op = d.step.Op
	}
	if op != "" {
		d.alarm = alarm{now.Mono + IdleWake} // nothing else is sent until it is answered
		d.step.Abort = d.unwanted(now.Mono, op)
	}
	d.step.Wake = d.at
	d.step.Watch, d.step.Stream, d.step.Version = m.follower.watch(m.watching()), m.stream, m.from(versionOf(m.lease))
	return d.step
}

// decision is the state of one call of Next.
type decision struct {
	*Machine
	alarm
	step Step
}

// alarm is the time at which a decision must be repeated.
type alarm struct{ at time.Duration }

// due reports whether t has come. If not, the decision is repeated at t.
func (a *alarm) due(now, t time.Duration) bool {
	if now < t {
		a.at = min(a.at, t)
	}
	return now >= t
}

// choose decides about the next request.
func (d *decision) choose(now Instant) {
	switch {
	case d.holds():
		d.lead(now)
	case d.phase == Ended:
		d.read(now.Mono)
	case d.release != nil:
		d.giveAway(now)
	case d.stopping:
		d.leave(now)
	default:
		d.stand(now)
	}
}

// request sets the request of the step.
func (d *decision) request(op Op, l *coordinationv1.Lease, timeout time.Duration) {
	d.step.Op, d.step.Object, d.step.Timeout = op, l, timeout
}

// unwanted reports whether to cancel the request under way.
func (d *decision) unwanted(now time.Duration, op Op) bool {
	if d.holds() {
		d.due(now, d.term.deadline)
	}
	claims, stopped := d.due(now, d.claimAt()), d.due(now, d.stopBy)
	switch op {
	case Renew:
		return !d.holds()
	case Read:
		return stopped || d.stopping && d.phase == Standby && !d.stale()
	case Publish:
		return d.stopping || claims
	}
	return stopped
}

// read reads the Lease if that is due. It reports whether it does.
func (d *decision) read(now time.Duration) bool {
	due := d.due(now, d.nextRead(d.watching()))
	if due {
		d.request(Read, nil, d.CallTimeout)
	}
	return due
}

// lead decides for a candidate that holds the lease.
func (d *decision) lead(now Instant) {
	d.due(now.Mono, d.term.deadline)
	if d.sure != certain {
		if d.read(now.Mono) {
			d.step.Timeout = d.leaderTimeout(now.Mono)
		}
		return
	}
	at := d.term.renewAt
	if d.phase == Leading && d.registry.urgent() || now.Drift()-d.term.sent.Drift() > MaxDrift {
		at = now.Mono
	}
	if !d.due(now.Mono, max(at, d.retryAt)) {
		d.due(now.Mono, now.Mono+watchDriftEvery)
		return
	}
	d.request(Renew, d.renewedLease(now), d.leaderTimeout(now.Mono))
}

// leaderTimeout returns half of the time that is left, so that there is time for
// another call.
func (m *Machine) leaderTimeout(now time.Duration) time.Duration {
	left := m.term.deadline - now
	return min(m.CallTimeout, max(left/2, minCall), left)
}

// stand decides for a candidate that may claim the lease.
func (d *decision) stand(now Instant) {
	if d.read(now.Mono) || !d.known || !d.due(now.Mono, d.retryAt) {
		return
	}
	claim := d.claimAt()
	if d.due(now.Mono, claim) {
		d.request(Claim, d.claimedLease(now), d.CallTimeout)
		return
	}
	if at, op := d.registry.publishAt(now.Mono); d.due(now.Mono, at) {
		// The request must end before the lease can be claimed.
		d.request(op, d.recordLease(now), min(d.CallTimeout, max(claim-now.Mono, minCall)))
	}
}

// watching reports whether the Lease should be watched, and can be. Observers
// don't watch.
func (m *Machine) watching() bool {
	return m.known && !m.polling && (m.phase != Standby || !m.registry.observer())
}

// claimAt returns when to claim the lease: when it is free, as far as was observed,
// and better candidates have let their turns pass.
func (m *Machine) claimAt() time.Duration {
	switch {
	case m.phase != Standby || !m.known:
		return Never
	case m.mine():
		// It was handed over, or a coordinator assigned it. In the second case an
		// earlier leader may not know that yet.
		return m.base
	}
	at := m.freeAt() + m.registry.turn()
	if m.pulse.Holder != "" && !m.watching() && m.lastRead < at {
		return Never // look before
	}
	return at
}

// giveAway gives the lease to another candidate, or releases it.
func (d *decision) giveAway(now Instant) {
	d.due(now.Mono, d.stopBy)
	switch {
	case !d.due(now.Mono, d.retryAt):
	case d.sure != certain:
		d.request(Read, nil, d.stopTimeout(now.Mono))
	default:
		d.request(HandOver, d.handedLease(now, d.release.to), d.stopTimeout(now.Mono))
	}
}

// leave withdraws the record when Run ends.
func (d *decision) leave(now Instant) {
	d.due(now.Mono, d.stopBy)
	switch {
	case !d.due(now.Mono, d.retryAt):
	case d.stale():
		d.request(Read, nil, d.stopTimeout(now.Mono))
	default:
		d.request(Withdraw, d.recordLease(now), d.stopTimeout(now.Mono))
	}
}

// stopTimeout returns the timeout of a request of a candidate that may be stopping.
func (m *Machine) stopTimeout(now time.Duration) time.Duration {
	return max(time.Millisecond, min(m.CallTimeout, m.stopBy-now))
}

// A candidate writes the Lease as it was last observed, with its own changes. The
// resourceVersion makes the write fail if another client was faster. Fields and
// annotations of other clients stay.

// editable returns a copy of the last observed Lease, or one to create.
func (m *Machine) editable() *coordinationv1.Lease {
	l := m.lease.DeepCopy()
	if l == nil {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Lease.Namespace, Name: m.Lease.Name, Labels: m.Labels, OwnerReferences: m.OwnerReferences,
		}}
	}
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	return l
}

// stamp sets a new renewTime: the wall clock, but never the same time twice, because
// other candidates detect renewals by changes.
func stamp(l *coordinationv1.Lease, wall time.Time) {
	t := metav1.NewMicroTime(wall.Truncate(time.Microsecond))
	if before := l.Spec.RenewTime; before.Equal(&t) {
		t.Time = t.Add(time.Microsecond)
	}
	l.Spec.RenewTime = &t
}

// leaseFor returns the Lease with a holder whose term begins, or that has no holder.
func (m *Machine) leaseFor(holder string, now Instant) *coordinationv1.Lease {
	l := m.editable()
	stamp(l, now.Wall)
	// Not nil: the controller of the API server up to 1.37 needs a holder.
	l.Spec.HolderIdentity = &holder
	l.Spec.AcquireTime = l.Spec.RenewTime.DeepCopy()
	l.Spec.PreferredHolder = nil
	delete(l.Annotations, offerAnnotation)
	delete(l.Annotations, handoverAnnotation)
	delete(l.Annotations, termAnnotation)
	return l
}

// claimedLease returns the Lease that begins a term.
func (m *Machine) claimedLease(now Instant) *coordinationv1.Lease {
	l := m.leaseFor(m.ID, now)
	l.Spec.LeaseDurationSeconds = m.seconds()
	assigned := m.mine() && begun(m.lease)
	switch {
	case m.lease == nil:
		l.Spec.LeaseTransitions = ptr.To[int32](0)
	case !assigned || m.pulse.SameTerm(m.past): // an assignment is counted already
		l.Spec.LeaseTransitions = ptr.To(spec.NextTransition(spec.TransitionsOf(l)))
	}
	l.Annotations[termAnnotation] = markOf(l)
	m.registry.write(now.Mono, Claim, l)
	return l
}

// renewedLease returns the Lease with a new renewTime.
func (m *Machine) renewedLease(now Instant) *coordinationv1.Lease {
	l := m.editable()
	l.Spec.LeaseDurationSeconds = m.seconds()
	stamp(l, now.Wall)
	m.registry.write(now.Mono, Renew, l)
	return l
}

// recordLease returns the Lease with this candidate's record as it should be.
func (m *Machine) recordLease(now Instant) *coordinationv1.Lease {
	l := m.editable()
	m.registry.write(now.Mono, Publish, l)
	return l
}

// handoverSeconds is the leaseDurationSeconds of a lease that is handed over, until
// its new holder claims it: the time without a leader if the new holder has died.
// client-go's candidates read every two to five seconds.
const handoverSeconds = 5

// handedLease returns the Lease with another candidate as its holder, or released
// if to is empty.
func (m *Machine) handedLease(now Instant, to string) *coordinationv1.Lease {
	l := m.leaseFor(to, now)
	if to == "" {
		l.Spec.LeaseDurationSeconds = ptr.To[int32](releaseSeconds)
	} else {
		l.Spec.LeaseDurationSeconds = ptr.To(min(*m.seconds(), handoverSeconds))
		l.Spec.LeaseTransitions = ptr.To(spec.NextTransition(spec.TransitionsOf(l)))
		l.Annotations[handoverAnnotation], l.Annotations[termAnnotation] = m.ID, markOf(l)
	}
	m.registry.write(now.Mono, HandOver, l)
	return l
}

// seconds returns LeaseDuration in the unit of the API.
func (m *Machine) seconds() *int32 {
	return ptr.To(int32(m.LeaseDuration / time.Second))
}

// pollFor is the time for which an object is polled after a watch was refused.
const pollFor = 10 * time.Minute

// patientGone is the number of watches in a row that may lose their place, each started
// from the result of a read. The next ones begin without a version, because the object may
// be older than the oldest version that can be watched. If as many of those lose their
// place too, the object is polled.
const patientGone = 3

// A certainty says whether the observed state of an object is the stored one.
type certainty uint8

const (
	// certain: as far as is known, nothing was missed.
	certain certainty = iota
	// unconfirmed: there is no object, and a watch began without a version. A read
	// shows whether one was created in between.
	unconfirmed
	// uncertain: a change may have been missed, or the effect of a write is not known.
	uncertain
)

// follower decides when an object is read, and whether it is watched. The Lease has
// one, and so has the LeaseCandidate.
//
// Invariant: nothing is read before retryAt.
// Invariant: an object that is polled was refused a watch, and is polled for a while.
type follower struct {
	poll time.Duration // between two reads of an object that can't be watched

	sure      certainty
	buried    types.UID     // of the last object that the watch showed to be deleted; "" for none
	stream    int           // grows when the watch waits for versions that will not come
	polling   bool          // the object can't be watched,
	pollUntil time.Duration // until then
	gone      int           // watches in a row that lost their place
	readAt    time.Duration // the next read without a watch
	failures  int           // reads in a row that failed
	retryAt   time.Duration
}

// isBuried reports whether an object is the one that was deleted last. The answer to a write
// may come after that.
func (f *follower) isBuried(uid types.UID) bool { return f.buried != "" && uid == f.buried }

// Polling reports whether the object can't be watched.
func (f *follower) Polling() bool { return f.polling }

// tick ends the polling after pollFor.
func (f *follower) tick(now time.Duration) { f.polling = f.polling && now < f.pollUntil }

// nextRead returns when to read an object that is watched or not.
func (f *follower) nextRead(watched bool) time.Duration {
	switch {
	case f.sure != certain:
		return f.retryAt
	case watched:
		return Never
	}
	return max(f.readAt, f.retryAt)
}

// lost updates f after a watch that has lost its place (gone) or was refused.
func (f *follower) lost(now time.Duration, gone bool) {
	if gone {
		f.sure = max(f.sure, uncertain)
		if f.gone++; f.gone < 2*patientGone {
			return
		}
	}
	f.gone, f.polling, f.pollUntil, f.readAt = 0, true, now+pollFor, now+f.poll
}

// from returns the version from which a watch begins, if version is that of the object.
func (f *follower) from(version string) string {
	if f.gone >= patientGone {
		return ""
	}
	return version
}

// watch returns what to do about the watch of an object that should be watched, and
// can be.
func (f *follower) watch(wanted bool) Watch {
	switch {
	case !wanted:
		return Unwatched
	case f.sure != certain:
		return Keep
	}
	return Watched
}
