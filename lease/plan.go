// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/slots"
)

// This file decides, and does nothing else: the first step of a turn, and the step
// that follows from each answer. The functions read and write the state of one node
// and the record of the turn. They call no function of the Config and read no clock.

// A step is the next action of a turn.
type step uint8

const (
	done   step = iota // nothing: the turn is over
	ask                // ask Owner again
	get                // read the lease
	create             // POST it
	update             // PUT it
)

// rules is the part of the Config that decisions depend on.
type rules struct {
	duration  time.Duration
	interval  time.Duration
	onForeign ForeignPolicy
}

// A turn is one visit to a node: from asking Gate and Owner to the last answer.
type turn struct {
	nodeName string
	holder   string // who we are
	process  process
	mayFail  bool // ForeignFail may end Run because of this node

	gateErr  error
	owner    metav1.OwnerReference
	ownerErr error

	conflicts int     // writes refused because another client had written
	read      bool    // the lease was read
	again     bool    // the lease has vanished twice within one duration
	takeFrom  party   // the holder that the next write takes the lease from
	renewTime int64   // of the last write
	sent      instant // when the last write was sent

	outcome
}

// outcome is the part of a turn that is reported, and when the next turn is.
type outcome struct {
	written   bool // the last call was a write that was accepted
	created   bool
	err       error         // the turn failed
	class     apierr.Class  // and how
	recovered time.Duration // the lease had expired: time between the renewals
	vanished  bool          // the lease we held was gone
	stolen    party         // who has written our lease three times now
	takenOver party         // whom we took it from
	behind    time.Duration // how far our clock is behind RenewTime
	skipped   bool          // there was nothing to write
	fatal     error         // Run must end
	next      slots.Next
}

// retries is the backoff after failed turns: the numbers of the kubelet with
// jitter, so that the first success comes at most 7 s after the end of an
// outage, and no more than twelve tries a minute are made.
func retries() backoff.Policy {
	return backoff.Policy{Base: 200 * time.Millisecond, Cap: 7 * time.Second, Jitter: 2.0 / 7}
}

// manyFailures is a count of failures at which retries is at its cap.
const manyFailures = 16

// maxConflicts is the number of times within a turn that a lease is read and written
// again at once because another client has written it.
const maxConflicts = 2

// begin decides how a turn begins, after Gate and Owner have been asked.
func (s *state) begin(r *rules, t *turn, now instant) step {
	switch {
	case t.gateErr != nil:
		s.phase = PhasePaused
		s.clearFailures(now.since, r.duration)
		return done
	case apierrors.IsNotFound(t.ownerErr):
		return s.withoutNode(r, now)
	}
	if s.phase == PhasePaused || s.phase == PhaseNoOwner {
		s.phase = PhasePending
	}
	if wait := s.createHold(r, t, now); wait > 0 {
		t.next.Wait = wait
		return done
	}
	if s.version == "" {
		return get
	}
	// The next slot is at least a quarter of the interval away from a renewal,
	// so this is a Trigger: it does not make renewals more frequent.
	if s.phase == PhaseHeld && (s.trouble == nil || s.trouble.failures == 0) &&
		sameOwner(s.nextOwner(t), s.owner) && now.since-s.renewed < r.interval/4 {
		t.skipped = true
		return done
	}
	return update
}

// withoutNode stops all calls: a lease without its Node would be garbage.
func (s *state) withoutNode(r *rules, now instant) step {
	s.forget()
	s.phase = PhaseNoOwner
	s.clearFailures(now.since, r.duration)
	return done
}

// after decides what follows from the answer to a call.
func (s *state) after(r *rules, t *turn, did step, lease *coordinationv1.Lease, err error, now instant) step {
	class := apierr.Classify(err)
	write := did == create || did == update
	if write && apierr.MayHaveCommitted(err) && err != nil {
		s.mayBeStored(t)
	}
	switch {
	case class == apierr.None && write:
		return s.accepted(r, t, did, lease, now)
	case class == apierr.None:
		return s.found(r, t, lease, now)
	case write && (class == apierr.Conflict || class == apierr.AlreadyExists):
		// An update with the UID of an object that is gone is a conflict too.
		s.version, s.held = "", false
		if t.conflicts++; t.conflicts <= maxConflicts {
			return get
		}
	case class == apierr.NotFound && did != create && (s.uid == "" || apierr.IsMissing(err, "leases", t.nodeName)):
		return s.gone(r, t, now)
	case class == apierr.Invalid && did == update:
		// Perhaps our idea of the lease is at fault: read it once. If the API server
		// refuses the result too, an administrator must correct it.
		s.version = ""
		if !t.read {
			return get
		}
	}
	return s.failed(r, t, class, explain(t.nodeName, err), apierr.RetryAfter(err))
}

// mayBeStored remembers the last write of turn t, whose answer did not come.
func (s *state) mayBeStored(t *turn) {
	tr := s.inTrouble()
	if tr.firstUnsure == 0 {
		tr.firstUnsure = t.renewTime
	}
	tr.lastUnsure, tr.unsureSent = t.renewTime, t.sent
}

// accepted updates s after a write that the API server has stored.
func (s *state) accepted(r *rules, t *turn, did step, lease *coordinationv1.Lease, now instant) step {
	s.adopt(t, lease)
	if tr := s.trouble; tr != nil {
		tr.firstUnsure, tr.lastUnsure = 0, 0
	}
	t.created = did == create
	t.takenOver = t.takeFrom
	return s.acquired(r, t, max(s.renewTime, t.renewTime), t.sent, now)
}

// acquired ends a turn with a lease that is ours, by a write that was sent at
// sent. From then on the lease is reckoned: another process that waits for it to
// expire begins no sooner.
func (s *state) acquired(r *rules, t *turn, renewTime int64, sent, now instant) step {
	s.renewTime = renewTime
	s.phase = PhaseHeld
	t.written = true
	if s.renewed != never && now.since-s.renewed >= r.duration {
		t.recovered = now.since - s.renewed
	}
	s.renewed, s.renewedWall, s.held = sent.since, sent.wall, true
	if tr := s.trouble; tr != nil {
		tr.foreign.party = party{}
	}
	s.checkClock(t, now)
	s.clearFailures(now.since, r.duration)
	return done
}

// checkClock records once that the wall clock is behind the last RenewTime.
func (s *state) checkClock(t *turn, now instant) {
	const tolerance = int64(time.Second / time.Microsecond)
	behind := s.renewTime - now.wall
	switch {
	case behind > tolerance && (s.trouble == nil || !s.trouble.clockBehind):
		s.inTrouble().clockBehind = true
		t.behind = time.Duration(behind) * time.Microsecond
	case behind <= tolerance && s.trouble != nil:
		s.trouble.clockBehind = false
	}
}

// found decides the step after a lease was read.
func (s *state) found(r *rules, t *turn, lease *coordinationv1.Lease, now instant) step {
	t.read, t.takeFrom = true, party{}
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	renewTime := microseconds(lease.Spec.RenewTime)
	switch {
	case s.isForeign(t, lease):
		return s.foreign(r, t, lease, now)
	case s.unsure(renewTime):
		// A write that we took for lost had landed. If it is recent it is the
		// renewal of this turn.
		s.adopt(t, lease)
		tr := s.trouble
		if holder != "" && renewTime == tr.lastUnsure && now.since-tr.unsureSent.since <= r.interval/2 && sameOwner(s.nextOwner(t), s.owner) {
			t.takenOver = tr.foreign.party
			tr.firstUnsure, tr.lastUnsure = 0, 0
			return s.acquired(r, t, renewTime, tr.unsureSent, now)
		}
		return update
	case s.uid != "" && (lease.UID != s.uid || renewTime != s.renewTime):
		// We held it, and this renewal is not ours.
		s.countForeignWrite(r, t, party{holder: t.holder}, now)
	}
	s.adopt(t, lease)
	return update
}

// isForeign reports whether another process holds the lease: one with another
// holder identity, or one that serves the same node under the same identity. A
// lease that names no process is that of a kubelet, or of an earlier version of
// this package, and a process with the same identity follows it.
func (s *state) isForeign(t *turn, lease *coordinationv1.Lease) bool {
	holder, by := ptr.Deref(lease.Spec.HolderIdentity, ""), processOf(lease)
	switch {
	case holder == "":
		return false
	case holder != t.holder:
		return true
	case by == process{} || by == t.process:
		return false
	case lease.UID == s.uid && microseconds(lease.Spec.RenewTime) < s.renewTime:
		return false // older than our own: the API server was restored from a backup
	case by.name != t.process.name:
		return true
	}
	// The same process was started twice. The later start goes on with the lease
	// of the earlier one, and that one, if it is still there, yields.
	return s.renewed != never
}

// foreign applies ForeignPolicy to a lease that another process holds.
func (s *state) foreign(r *rules, t *turn, lease *coordinationv1.Lease, now instant) step {
	tr := s.inTrouble()
	holder, renewTime := partyOf(t, lease), microseconds(lease.Spec.RenewTime)
	if s.uid != "" {
		s.countForeignWrite(r, t, holder, now)
	}
	if tr.foreign.party != holder || tr.foreign.renewTime != renewTime {
		tr.foreign.party, tr.foreign.renewTime, tr.foreign.since = holder, renewTime, now.since
	}
	expires := tr.foreign.since + durationOf(lease, r.duration) - now.since
	if r.onForeign == ForeignTakeOver || r.onForeign == ForeignWaitExpired && expires <= 0 {
		s.adopt(t, lease)
		t.takeFrom = holder
		return update
	}
	s.renewTime = max(s.renewTime, renewTime)
	s.forget()
	s.phase = PhaseForeign
	s.clearFailures(now.since, r.duration)
	switch {
	case r.onForeign == ForeignWaitExpired:
		t.next.Wait = min(expires, r.interval)
	case t.mayFail:
		t.fatal = &HeldByOtherError{NodeName: t.nodeName, Holder: holder.holder, Process: holder.process}
	}
	return done
}

// holds returns nil while the lease is ours: it was renewed by this process, no
// answer since has said otherwise, and too little time has passed for another
// process to take it for expired. The wall clock only makes doubts: the monotonic
// one stands still while a machine is suspended.
func (s *state) holds(r *rules, now instant) error {
	limit := r.duration - r.duration/holdMargin
	age := max(now.since-s.renewed, time.Duration(now.wall-s.renewedWall)*time.Microsecond)
	switch tr := s.trouble; {
	case tr != nil && tr.contended:
		return errContended
	case s.held && age < limit:
		return nil
	case s.held:
		return errExpired
	case s.phase == PhaseForeign:
		return errForeign
	}
	return errNotHeld
}

// holdMargin is the divisor of the duration for the part that is left when
// holds reports that the lease has expired: time for actions that began before, and
// for clocks that don't run at the same rate.
const holdMargin = 20

// durationOf returns the time for which a lease is valid by its own account.
func durationOf(lease *coordinationv1.Lease, otherwise time.Duration) time.Duration {
	if seconds := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return otherwise
}

// countForeignWrite counts a write of another process to a lease that we held.
func (s *state) countForeignWrite(r *rules, t *turn, holder party, now instant) {
	tr := s.inTrouble()
	copy(tr.foreignWrites[:], tr.foreignWrites[1:])
	tr.foreignWrites[contendedAfter-1] = now.since
	if !tr.contended && now.since-tr.foreignWrites[0] <= r.duration {
		tr.contended = true
		t.stolen = holder
	}
}

// gone decides the step after the API server has answered that the lease does not exist.
func (s *state) gone(r *rules, t *turn, now instant) step {
	if s.uid == "" {
		return s.mayCreate(r, t)
	}
	tr := s.inTrouble()
	t.vanished = true
	t.again = tr.vanishedOwner == s.owner.UID && now.since-tr.vanished <= r.duration
	tr.vanished, tr.vanishedOwner = now.since, s.owner.UID
	s.forget()
	s.phase = PhasePending
	// Usually the garbage collector has deleted it because the Node is gone, and
	// Owner may know that by now.
	return ask
}

// createHold is the time for which a lease that vanished is not created again with
// the owner that it had. A controller that is asked to read the Node, by
// Hooks.Deleted, answers within that time, and then Owner knows that the Node is
// gone.
const createHold = time.Second

// createHold returns the time before which the lease must not be created with the
// owner of turn t, or 0.
func (s *state) createHold(r *rules, t *turn, now instant) time.Duration {
	if s.uid != "" || s.trouble == nil || t.ownerErr != nil || t.owner.UID != s.trouble.vanishedOwner {
		return 0
	}
	return max(0, s.trouble.vanished+min(createHold, r.interval)-now.since)
}

// asked decides what follows from the second answer of Owner.
func (s *state) asked(r *rules, t *turn, now instant) step {
	switch {
	case apierrors.IsNotFound(t.ownerErr):
		return s.withoutNode(r, now)
	case t.again && t.ownerErr == nil && t.owner.UID == s.trouble.vanishedOwner:
		// The lease was created with this owner and deleted, twice: that Node is
		// gone, and Owner does not know. Creating it again at once would make
		// garbage as fast as it is collected, so wait for the next slot.
		return done
	}
	if t.next.Wait = s.createHold(r, t, now); t.next.Wait > 0 {
		return done
	}
	return s.mayCreate(r, t)
}

// mayCreate creates the lease, but never with an owner that is not known.
func (s *state) mayCreate(r *rules, t *turn) step {
	if t.ownerErr != nil {
		return s.failed(r, t, apierr.Classify(t.ownerErr), explainOwner(t.nodeName, t.ownerErr), 0)
	}
	return create
}

// failed ends a turn with an error.
func (s *state) failed(r *rules, t *turn, class apierr.Class, err error, retryAfter time.Duration) step {
	tr := s.inTrouble()
	tr.failures++
	tr.err, t.err, t.class = err, err, class
	if t.takeFrom != (party{}) {
		s.forget() // it is still another's
	}
	wait := min(retries().Delay(tr.failures), r.interval)
	switch class {
	case apierr.Unauthorized, apierr.Forbidden, apierr.Invalid:
		// Nothing that a second helps.
		wait = retries().Delay(manyFailures)
	}
	t.next.Wait = max(wait, min(retryAfter, r.duration))
	return done
}
