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

// This file decides, and does nothing else: what a turn begins with, and what
// follows from each answer. The functions read and write the state of one node
// and the record of the turn; they call nobody and read no clock.

// A step is what a turn does next.
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
	mayFail  bool   // ForeignFail may end Run because of this node

	gateErr  error
	owner    metav1.OwnerReference
	ownerErr error

	conflicts int    // writes refused because somebody else had written
	read      bool   // the lease was read
	again     bool   // the lease has vanished twice within one duration
	takeFrom  string // the holder that the next write takes the lease from
	renewTime int64  // what the last write said

	outcome
}

// outcome is what there is to tell about a turn, and when the next one is.
type outcome struct {
	written   bool // the last call was a write that was accepted
	created   bool
	err       error         // the turn failed
	class     apierr.Class  // and how
	recovered time.Duration // the lease had expired: time between the renewals
	vanished  bool          // the lease we held was gone
	stolen    string        // who has written our lease three times now
	takenOver string        // whom we took it from
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

// maxConflicts is how many times within a turn a lease that somebody else has
// written is read and written again at once.
const maxConflicts = 2

// begin decides how a turn begins, after Gate and Owner have been asked.
func (s *state) begin(r *rules, t *turn, now instant) step {
	switch {
	case t.gateErr != nil:
		s.phase = PhasePaused
		s.well(now.since, r.duration)
		return done
	case apierrors.IsNotFound(t.ownerErr):
		return s.withoutNode(r, now)
	}
	if s.phase == PhasePaused || s.phase == PhaseNoOwner {
		s.phase = PhasePending
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
	s.well(now.since, r.duration)
	return done
}

// after decides what follows from the answer to a call.
func (s *state) after(r *rules, t *turn, did step, lease *coordinationv1.Lease, err error, now instant) step {
	class := apierr.Classify(err)
	write := did == create || did == update
	if write && apierr.MayHaveCommitted(err) && err != nil {
		s.mayBeStored(t.renewTime)
	}
	switch {
	case class == apierr.None && write:
		return s.accepted(r, t, did, lease, now)
	case class == apierr.None:
		return s.found(r, t, lease, now)
	case write && (class == apierr.Conflict || class == apierr.AlreadyExists):
		// An update with the UID of an object that is gone is a conflict too.
		s.version = ""
		if t.conflicts++; t.conflicts <= maxConflicts {
			return get
		}
	case class == apierr.NotFound && did != create:
		return s.gone(r, t, now)
	case class == apierr.Invalid && did == update:
		// Perhaps our idea of the lease is at fault: read it, and if the API
		// server does not like the result either, somebody must look at it.
		s.version = ""
		if !t.read {
			return get
		}
	}
	return s.failed(r, t, class, explain(t.nodeName, err), apierr.RetryAfter(err))
}

// mayBeStored remembers a write whose answer did not come.
func (s *state) mayBeStored(renewTime int64) {
	tr := s.inTrouble()
	if tr.firstUnsure == 0 {
		tr.firstUnsure = renewTime
	}
	tr.lastUnsure = renewTime
}

// accepted takes note of a write that the API server has stored.
func (s *state) accepted(r *rules, t *turn, did step, lease *coordinationv1.Lease, now instant) step {
	s.adopt(t, lease)
	if tr := s.trouble; tr != nil {
		tr.firstUnsure, tr.lastUnsure = 0, 0
	}
	t.created = did == create
	t.takenOver = t.takeFrom
	return s.held(r, t, max(s.renewTime, t.renewTime), now)
}

// held ends a turn with a lease that is ours.
func (s *state) held(r *rules, t *turn, renewTime int64, now instant) step {
	s.renewTime = renewTime
	s.phase = PhaseHeld
	t.written = true
	if s.renewed != never && now.since-s.renewed >= r.duration {
		t.recovered = now.since - s.renewed
	}
	s.renewed = now.since
	if tr := s.trouble; tr != nil {
		tr.foreign.holder = ""
	}
	s.checkClock(t, now)
	s.well(now.since, r.duration)
	return done
}

// checkClock notes once that the wall clock is behind what was last written.
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

// found decides what to do with a lease that was read.
func (s *state) found(r *rules, t *turn, lease *coordinationv1.Lease, now instant) step {
	t.read, t.takeFrom = true, ""
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	renewTime := microseconds(lease.Spec.RenewTime)
	switch {
	case holder != "" && holder != t.holder:
		return s.foreign(r, t, lease, now)
	case s.unsure(renewTime):
		// A write that we took for lost had landed. Where it is recent it is
		// the renewal of this turn.
		s.adopt(t, lease)
		age := time.Duration(now.wall-renewTime) * time.Microsecond
		if holder != "" && age >= 0 && age <= r.interval/2 && sameOwner(s.nextOwner(t), s.owner) {
			t.takenOver = s.trouble.foreign.holder
			s.trouble.firstUnsure, s.trouble.lastUnsure = 0, 0
			return s.held(r, t, renewTime, now)
		}
		return update
	case s.uid != "" && (lease.UID != s.uid || renewTime != s.renewTime):
		// We held it, and this renewal is not ours.
		s.theft(r, t, t.holder, now)
	}
	s.adopt(t, lease)
	return update
}

// foreign decides what to do with a lease that somebody else holds.
func (s *state) foreign(r *rules, t *turn, lease *coordinationv1.Lease, now instant) step {
	tr := s.inTrouble()
	holder, renewTime := *lease.Spec.HolderIdentity, microseconds(lease.Spec.RenewTime)
	if s.uid != "" {
		s.theft(r, t, holder, now)
	}
	if tr.foreign.holder != holder || tr.foreign.renewTime != renewTime {
		tr.foreign.holder, tr.foreign.renewTime, tr.foreign.since = holder, renewTime, now.since
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
	s.well(now.since, r.duration)
	switch {
	case r.onForeign == ForeignWaitExpired:
		t.next.Wait = min(expires, r.interval)
	case t.mayFail:
		t.fatal = &HeldByOtherError{NodeName: t.nodeName, Holder: holder}
	}
	return done
}

// durationOf is how long a lease is valid by its own account.
func durationOf(lease *coordinationv1.Lease, otherwise time.Duration) time.Duration {
	if seconds := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return otherwise
}

// theft counts a write of somebody else to a lease that we held.
func (s *state) theft(r *rules, t *turn, holder string, now instant) {
	tr := s.inTrouble()
	copy(tr.thefts[:], tr.thefts[1:])
	tr.thefts[thefts-1] = now.since
	if !tr.contended && now.since-tr.thefts[0] <= r.duration {
		tr.contended = true
		t.stolen = holder
	}
}

// gone decides what to do about a lease that does not exist.
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
	// As a rule the garbage collector was here because the Node is gone, and
	// Owner may know by now.
	return ask
}

// asked decides what follows from the second answer of Owner.
func (s *state) asked(r *rules, t *turn, now instant) step {
	switch {
	case apierrors.IsNotFound(t.ownerErr):
		return s.withoutNode(r, now)
	case t.again && t.ownerErr == nil && t.owner.UID == s.trouble.vanishedOwner:
		// Made with this owner and deleted, twice: that Node is gone, and Owner
		// does not know. Let it have until the next slot, instead of making
		// garbage as fast as it is collected.
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

// failed ends a turn that could not do what it should.
func (s *state) failed(r *rules, t *turn, class apierr.Class, err error, retryAfter time.Duration) step {
	tr := s.inTrouble()
	tr.failures++
	tr.err, t.err, t.class = err, err, class
	if t.takeFrom != "" {
		s.forget() // it is still somebody else's
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
