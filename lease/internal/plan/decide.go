// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/internal/backoff"
)

// Retries is the backoff after failed turns: the numbers of the kubelet with
// jitter, so that the first success comes at most 7 s after the end of an
// outage, and no more than twelve tries a minute are made.
func Retries() backoff.Policy {
	return backoff.Policy{Base: 200 * time.Millisecond, Cap: 7 * time.Second, Jitter: 2.0 / 7}
}

// manyFailures is a count of failures at which Retries is at its cap.
const manyFailures = 16

// maxConflicts is the number of times within a turn that a lease is read and written
// again at once because another client has written it.
const maxConflicts = 2

// createHold is the time for which a lease that vanished is not created again with
// the owner that it had. A controller that is asked to read the Node, by
// Hooks.Deleted, answers within that time, and then Owner knows that the Node is
// gone. The second time within one duration it is an interval: Owner still does not
// know, and creating it at once would make garbage as fast as it is collected.
const createHold = time.Second

// atOnce is the wait for a turn that follows immediately: 0 would be the next slot.
const atOnce = time.Nanosecond

// errNoTurn is the error of an event that needs a turn.
var errNoTurn = errors.New("there is no turn")

// Apply records an event. It returns an error if the event can't happen now, or led to
// a change of phase that was refused.
func (l *Lease) Apply(r *Rules, now Instant, event Event) error {
	if err := l.apply(r, now, event); err != nil {
		return err
	}
	if l.trouble != nil {
		return l.trouble.illegal
	}
	return nil
}

func (l *Lease) apply(r *Rules, now Instant, event Event) error {
	t := l.turn
	switch e := event.(type) {
	case Consent:
		l.turn = &turn{nodeName: e.NodeName, holder: e.Holder, owner: e.Owner, ownerErr: e.OwnerErr}
		l.turn.next = l.begin(r, now, &e)
		return nil
	case Leaving:
		l.turn = &turn{nodeName: e.NodeName, holder: e.Holder, last: e.Last}
		l.turn.next = l.beginLast()
		return nil
	case Ended:
		l.turn = nil
		l.becomeStopped()
		return nil
	}
	if t == nil {
		return fmt.Errorf("lease: %T: %w", event, errNoTurn)
	}
	switch e := event.(type) {
	case Reported:
		l.turn = nil
	case CutOff:
		l.sent(e.To)
		if e.To.Do == Create || e.To.Do == Update {
			l.mayBeStored()
		}
		if t.takeFrom != (Party{}) {
			l.forget(unknown) // it may still be another's
		}
		t.next = Finish
	case Answered:
		l.sent(e.To)
		switch {
		case t.last != Finish:
			t.next = l.afterLast(r, now, &e)
		case e.Answer == OK && e.To.Do == Get:
			t.next = l.found(r, now, &e)
		case e.Answer == OK:
			t.next = l.accepted(r, now, &e)
		default:
			t.next = l.refused(r, now, &e)
		}
	}
	return nil
}

// sent records in the turn when a write was sent.
func (l *Lease) sent(a Action) {
	if a.Do == Create || a.Do == Update {
		l.turn.sent = write{microseconds(a.Lease.Spec.RenewTime), a.At}
	}
}

// Next returns the next action of the turn.
func (l *Lease) Next(r *Rules, now Instant) Action {
	t := l.turn
	if t == nil {
		return Action{}
	}
	a := Action{Do: t.next, At: now}
	switch t.next {
	case Create, Update:
		a.Lease = l.object(r, now)
	case Expire:
		a.Lease = l.expired()
	case Sign:
		a.Lease = l.signed(r)
	case Delete:
		a.Lease = &coordinationv1.Lease{}
		a.Lease.UID, a.Lease.ResourceVersion = l.uid, l.version
	case Finish:
		a.Result = t.Result
	}
	return a
}

// begin decides how a turn begins.
func (l *Lease) begin(r *Rules, now Instant, e *Consent) Do {
	t := l.turn
	switch {
	case e.Gate != nil:
		l.becomeGateClosed()
		l.clearFailures(r, now)
		return Finish
	case e.NodeGone:
		l.becomeNoOwner()
		l.clearFailures(r, now)
		return Finish
	}
	if l.phase == GateClosed || l.phase == NoOwner {
		l.becomePending()
	}
	switch l.known {
	case unknown, missing:
		if t.HeldBack = l.holdBack(now); t.HeldBack > 0 {
			t.Wait = t.HeldBack
			return Finish
		}
		if l.known == missing {
			return l.mayCreate(r)
		}
		return Get
	case stale:
		return Get
	}
	// The next slot is at least a quarter of the interval away from a renewal,
	// so this is a Trigger: it does not make renewals more frequent.
	if failures, _ := l.Failures(); l.phase == Held && failures == 0 && sameOwner(l.nextOwner(), l.owner) && now.Since-l.renewed < r.Interval/4 {
		t.Skipped = true
		return Finish
	}
	return Update
}

// holdBack returns the time before which the lease must not be created with the owner
// of the turn, or 0.
func (l *Lease) holdBack(now Instant) time.Duration {
	if l.trouble == nil || l.turn.ownerErr != nil || l.turn.owner.UID != l.trouble.vanishedOwner {
		return 0
	}
	return max(0, l.trouble.createAfter-now.Since)
}

// mayCreate creates the lease, but never with an owner that is not known.
func (l *Lease) mayCreate(r *Rules) Do {
	if l.turn.ownerErr != nil {
		return l.failed(r, Failed, l.turn.ownerErr, 0)
	}
	return Create
}

// refused decides what follows from an answer that is not OK.
func (l *Lease) refused(r *Rules, now Instant, e *Answered) Do {
	t, did := l.turn, e.To.Do
	// No answer rules out that the write was stored: client-go sends it again after a
	// 503 with Retry-After, and the conflict, or the 403, is then the answer to the
	// second one.
	if did.isWrite() {
		l.mayBeStored()
	}
	if did == Create {
		l.known = unknown
	}
	switch {
	case did.isWrite() && e.Answer == Conflict:
		// An update with the UID of an object that is gone is a conflict too.
		l.doubt()
		l.held = false
		if t.conflicts++; t.conflicts <= maxConflicts {
			return Get
		}
	case did != Create && (e.Answer == Missing || e.Answer == NotFound && l.uid == "" && !l.remembersHolder()):
		return l.gone(r, now)
	case e.Answer == Invalid && did == Update:
		// Perhaps our idea of the lease is at fault: read it once. If the API server
		// refuses the result too, an administrator must correct it.
		l.doubt()
		if !t.read {
			return Get
		}
	}
	return l.failed(r, e.Answer, e.Err, e.RetryAfter)
}

// doubt drops the version, so that the object is read before it is written.
func (l *Lease) doubt() {
	if l.known == current {
		l.known, l.version = stale, ""
	}
}

// mayBeStored remembers the last write of the turn, whose answer did not come.
func (l *Lease) mayBeStored() {
	tr := l.inTrouble()
	if tr.firstUnsure == 0 {
		tr.firstUnsure = l.turn.sent.renewTime
	}
	tr.unsure = [2]write{tr.unsure[1], l.turn.sent}
}

// sure ends all doubts about writes.
func (tr *trouble) sure() { tr.firstUnsure, tr.unsure = 0, [2]write{} }

// accepted ends the turn with a write that the API server has stored.
func (l *Lease) accepted(r *Rules, now Instant, e *Answered) Do {
	t := l.turn
	l.adopt(e.Lease)
	t.Created = e.To.Do == Create
	t.TakenOver = t.takeFrom
	return l.acquired(r, now, t.sent)
}

// acquired ends the turn with a lease that is ours by write w. From its sending on the
// lease is reckoned: another process that waits for it to expire begins no sooner.
func (l *Lease) acquired(r *Rules, now Instant, w write) Do {
	t := l.turn
	t.Written = true
	if l.renewed != Never && now.Since-l.renewed >= r.Duration {
		t.Recovered = now.Since - l.renewed
	}
	l.renewTime, l.held = max(l.renewTime, w.renewTime), true
	l.renewed, l.renewedWall = w.sent.Since, w.sent.Wall
	l.becomeHeld()
	if tr := l.trouble; tr != nil {
		tr.foreign.Party = Party{}
		tr.sure()
	}
	l.checkClock(now)
	l.clearFailures(r, now)
	return Finish
}

// checkClock records once that the wall clock is behind the last RenewTime.
func (l *Lease) checkClock(now Instant) {
	const tolerance = int64(time.Second / time.Microsecond)
	behind := l.renewTime - now.Wall
	switch {
	case behind > tolerance && (l.trouble == nil || !l.trouble.clockBehind):
		l.inTrouble().clockBehind = true
		l.turn.Behind = time.Duration(behind) * time.Microsecond
	case behind <= tolerance && l.trouble != nil:
		l.trouble.clockBehind = false
	}
}

// found decides the step after the lease was read.
func (l *Lease) found(r *Rules, now Instant, e *Answered) Do {
	t, lease := l.turn, e.Lease
	t.read, t.takeFrom = true, Party{}
	renewTime := microseconds(lease.Spec.RenewTime)
	if l.isForeign(r, e) {
		return l.foreign(r, now, lease)
	}
	if l.remembersHolder() && !l.isGivenUp(r, lease) {
		if left := l.removed(now); left > 0 {
			return l.await(r, now, left)
		}
	}
	if l.phase == Foreign {
		l.becomePending()
	}
	switch {
	case l.isUnsure(renewTime):
		// A write that we took for lost had landed. If it is recent it is the
		// renewal of this turn.
		l.adopt(lease)
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" || !sameOwner(l.nextOwner(), l.owner) {
			return Update
		}
		for _, w := range l.trouble.unsure {
			if w.renewTime == renewTime && now.Since-w.sent.Since <= r.Interval/2 {
				t.TakenOver = l.trouble.foreign.Party
				return l.acquired(r, now, w)
			}
		}
		return Update
	case l.uid != "" && (lease.UID != l.uid || renewTime != l.renewTime):
		// We held it, and this renewal is not ours.
		l.countForeignWrite(r, now, Party{Holder: t.holder})
	}
	l.adopt(lease)
	return Update
}

// isForeign reports whether another process holds the lease: one with another
// holder identity, or one that serves the same node under the same identity. A
// lease that names no process is that of a kubelet, or of an earlier version of
// this package, and a process with the same identity follows it.
func (l *Lease) isForeign(r *Rules, e *Answered) bool {
	lease := e.Lease
	holder, by := ptr.Deref(lease.Spec.HolderIdentity, ""), processOf(lease)
	switch {
	case holder == "":
		return false
	case holder != l.turn.holder:
		return true
	case by == Process{} || by == r.Process:
		return false
	case lease.UID == l.uid && microseconds(lease.Spec.RenewTime) < l.renewTime:
		return false // older than our own: the API server was restored from a backup
	case by.Name != r.Process.Name:
		return true
	case r.Shared:
		// Another process on the same host, or an earlier one. Time without a renewal
		// proves nothing: one that was stopped may act when it goes on.
		return !e.Dead && LifeOf(lease) != ended
	}
	// The same process was started twice. The later start goes on with the lease
	// of the earlier one, and that one, if it is still there, yields.
	return l.renewed != Never
}

// foreign waits until the holder of the lease has not renewed it for the duration that
// it states, and then takes the lease over. The time is measured from when we saw the
// last renewal; the holder's clock does not matter.
func (l *Lease) foreign(r *Rules, now Instant, lease *coordinationv1.Lease) Do {
	t, tr := l.turn, l.inTrouble()
	holder, renewTime := partyOf(r, lease), microseconds(lease.Spec.RenewTime)
	if l.uid != "" {
		l.countForeignWrite(r, now, holder)
	}
	f := &tr.foreign
	if f.Party != holder {
		f.stated = 0
	}
	if f.Party != holder || f.renewTime != renewTime || f.removed {
		f.Party, f.renewTime, f.since, f.removed = holder, renewTime, now.Since, false
		// The holder states the duration with each renewal. Another client may have shortened
		// it since, or before we saw that renewal: then the one before counts.
		stated := durationOf(lease, r.Duration)
		f.duration, f.stated = max(stated, f.stated), stated
	}
	if left := f.since + f.duration - now.Since; left > 0 {
		l.renewTime = max(l.renewTime, renewTime)
		return l.await(r, now, left)
	}
	l.adopt(lease)
	t.takeFrom = holder
	return Update
}

// await ends the turn because the holder in l.trouble may still act for that time.
func (l *Lease) await(r *Rules, now Instant, left time.Duration) Do {
	l.becomeForeign()
	l.clearFailures(r, now)
	l.turn.Wait = min(left, r.Interval)
	return Finish
}

// remembersHolder reports whether another process held the lease, and we have not since.
func (l *Lease) remembersHolder() bool { return l.trouble != nil && l.trouble.foreign.Holder != "" }

// removed returns the time for which the last holder may still act if the lease does not
// show it: another client has deleted or edited the lease, or the API server was restored
// from a backup. The holder finds out with its next renewal. The last one may have come
// just before we saw that, so the time begins then.
func (l *Lease) removed(now Instant) time.Duration {
	if !l.remembersHolder() {
		return 0
	}
	f := &l.trouble.foreign
	if !f.removed {
		f.removed, f.since = true, now.Since
	}
	return max(0, f.since+f.duration-now.Since)
}

// isGivenUp reports whether a lease that no other process holds shows that the last holder
// gave it up, or that it is ours since. A lease that is given up has no holder and the
// shortest duration. An older RenewTime than that of the holder is that of a backup.
func (l *Lease) isGivenUp(r *Rules, lease *coordinationv1.Lease) bool {
	free := ptr.Deref(lease.Spec.HolderIdentity, "") == "" && durationOf(lease, r.Duration) <= shortest
	return (free || processOf(lease).Name == r.Process.Name) && microseconds(lease.Spec.RenewTime) >= l.trouble.foreign.renewTime
}

// durationOf returns the time for which a lease is valid by its own account.
func durationOf(lease *coordinationv1.Lease, otherwise time.Duration) time.Duration {
	if seconds := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return otherwise
}

// countForeignWrite counts a write of another process to a lease that we held.
func (l *Lease) countForeignWrite(r *Rules, now Instant, holder Party) {
	tr := l.inTrouble()
	copy(tr.foreignWrites[:], tr.foreignWrites[1:])
	tr.foreignWrites[contendedAfter-1] = now.Since
	if !tr.contended && now.Since-tr.foreignWrites[0] <= r.Duration {
		tr.contended = true
		l.turn.Stolen = holder
	}
}

// gone decides the step after the API server has answered that the lease does not exist.
func (l *Lease) gone(r *Rules, now Instant) Do {
	if l.uid == "" || l.remembersHolder() { // also if it was about to be taken
		if left := l.removed(now); left > 0 {
			return l.await(r, now, left)
		}
		l.forget(missing)
		return l.mayCreate(r)
	}
	// Usually the garbage collector has deleted it because the Node is gone, and Owner
	// may know that by now: the next turn asks.
	t, tr := l.turn, l.inTrouble()
	hold := min(createHold, r.Interval)
	if tr.vanishedOwner == l.owner.UID && now.Since-tr.vanished <= r.Duration {
		hold = r.Interval
	}
	tr.vanished, tr.vanishedOwner, tr.createAfter = now.Since, l.owner.UID, now.Since+hold
	l.forget(missing)
	l.becomePending()
	t.Vanished, t.Wait = true, atOnce
	return Finish
}

// failed ends the turn with an error.
func (l *Lease) failed(r *Rules, answer Answer, err error, retryAfter time.Duration) Do {
	t, tr := l.turn, l.inTrouble()
	tr.failures++
	tr.err, t.Err = err, err
	if t.takeFrom != (Party{}) {
		l.forget(unknown) // it is still another's
	}
	wait := min(Retries().Delay(tr.failures), r.Interval)
	if answer == Refused || answer == Invalid {
		wait = Retries().Delay(manyFailures) // waiting for a second changes nothing
	}
	t.Wait = max(wait, min(retryAfter, r.Duration))
	return Finish
}

// beginLast decides how the last turn begins.
func (l *Lease) beginLast() Do {
	failures, _ := l.Failures()
	switch {
	case l.turn.last == Sign && (l.known != current || failures > 0):
		return l.leave() // a courtesy, which must not hold up the end of a process
	case l.known == current:
		return l.turn.last
	case l.known == stale || l.trouble != nil && l.trouble.firstUnsure != 0:
		return Get
	}
	return l.leave() // nothing is ours
}

// leave ends the last turn: the object is no longer ours.
func (l *Lease) leave() Do {
	l.forget(unknown)
	return Finish
}

// afterLast decides what follows from an answer in the last turn. A client may have
// written or deleted the lease, perhaps we ourselves with a write whose answer did not
// come. A lease that is not as we left it is not ours.
func (l *Lease) afterLast(r *Rules, now Instant, e *Answered) Do {
	t := l.turn
	t.read = t.read || e.To.Do == Get
	switch {
	case e.To.Do == Get && e.Answer == OK:
		renewTime := microseconds(e.Lease.Spec.RenewTime)
		ours := l.uid == e.Lease.UID && l.renewTime == renewTime || l.isUnsure(renewTime) && processOf(e.Lease) == r.Process
		if ptr.Deref(e.Lease.Spec.HolderIdentity, "") != t.holder || !ours {
			return l.leave()
		}
		l.adopt(e.Lease)
		return t.last
	case e.Answer == OK:
		t.Released = true
	case e.Answer == Conflict && !t.read:
		return Get
	case e.Answer == Conflict, e.Answer == Missing: // another client writes it all the time, or it is gone
	default:
		t.Err = e.Err
	}
	return l.leave()
}
