// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan decides what package lease does next with the lease of one node.
//
// A turn is one visit to a node. It begins with the results of Gate and Owner, and ends
// with the last answer of the API server. [Lease.Apply] records facts, [Lease.Next] returns
// the next action, and [Lease.Check] returns which invariant is broken. The package calls
// no function of a Config, reads no clock and sends no request.
package plan

import (
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// known is what we know about the object.
type known uint8

const (
	unknown known = iota // it must be read
	missing              // it did not exist a moment ago
	stale                // we had it, and must read it before it is written
	current              // we have its version
)

// A Lease is the state of the lease of one node: enough to renew it with one PUT.
// There may be ten thousand in memory, so fields that only few need are behind a
// pointer. The zero value is not ready to use; see New. It is not safe for concurrent
// use.
type Lease struct {
	phase Phase

	// The object.
	//
	// Invariant: there is a UID if and only if the object is stale or current.
	// Invariant: there is a version if and only if the object is current.
	// Invariant: without a UID there are no owner and no extra fields.
	known   known
	uid     types.UID
	version string
	owner   metav1.OwnerReference // the Node it names; no UID for none
	extra   *coordinationv1.Lease // its other fields, which a write must keep, or nil

	// Our renewals. The highest RenewTime outlives the object: watchers of a lease of
	// this name compare with it, also if the object is another one.
	//
	// Invariant: a lease that is held has a UID and was renewed.
	// Invariant: in phase Held the lease was renewed.
	// Invariant: in phases Foreign and NoOwner it is not held, and between turns the
	// object is unknown or missing.
	// Invariant: after the end there is no object.
	renewTime   int64         // the highest RenewTime that was stored, as far as we know
	renewed     time.Duration // when the last write that was accepted was sent, or Never
	renewedWall int64         // and the same on the wall clock
	held        bool          // no answer since then says that it is another's, or gone

	// Invariant: a quiet lease has no trouble, which keeps ten thousand nodes small.
	trouble *trouble
	// Invariant: between turns there is no turn.
	turn *turn
}

// trouble is the state of a lease while calls fail or another client writes it.
type trouble struct {
	// Invariant: there is an error if and only if there are failures.
	failures int
	err      error

	// Writes that may or may not have been stored; a RenewTime of zero for none. The
	// last two are known by their time: a write that was lost, and the next one, which
	// met the conflict with it.
	//
	// Invariant: they are in order, and there is a last one if there is a first one.
	firstUnsure int64 // RenewTime
	unsure      [2]write

	// The last holder that was seen, until we hold the lease.
	//
	// Invariant: in phase Foreign there is a holder.
	foreign struct {
		Party
		renewTime int64
		since     time.Duration // when we first saw this renewTime, or that it is removed
		duration  time.Duration // for which it holds the lease from then on
		stated    time.Duration // by the lease with this renewTime
		removed   bool          // the lease does not show it, and it has not given the lease up
	}

	// Invariant: the writes are in the order of their times.
	// Invariant: a contended lease was written by another client.
	foreignWrites [contendedAfter]time.Duration // when another client wrote our lease, latest last
	contended     bool

	vanished      time.Duration // when the lease we held was last gone, or Never
	createAfter   time.Duration // not to be created before, with the owner that it had
	vanishedOwner types.UID     // that owner
	clockBehind   bool          // it was reported that our clock is behind

	illegal error // a change of phase that was refused, or nil
}

// write is a write as it was sent.
type write struct {
	renewTime int64
	sent      Instant
}

// turn is one visit to a node.
type turn struct {
	nodeName string
	holder   string // who we are
	owner    metav1.OwnerReference
	ownerErr error
	last     Do // of the last turn: Expire, Sign or Delete; else Finish

	next Do

	conflicts int   // writes refused because another client had written
	read      bool  // the lease was read
	takeFrom  Party // the holder that the next write takes the lease from
	sent      write // the last write of this turn

	Result
}

// contendedAfter is the number of foreign writes within one duration that make a
// contention. One or two may be a process that is being replaced by its successor.
const contendedAfter = 3

// New returns the state of a lease about which nothing is known.
func New() Lease { return Lease{renewed: Never} }

// Phase returns the phase.
func (l *Lease) Phase() Phase { return l.phase }

// Renewed returns when the last write that was accepted was sent, or Never.
func (l *Lease) Renewed() time.Duration { return l.renewed }

// Failures returns the number of turns that failed in a row, and the last error.
func (l *Lease) Failures() (int, error) {
	if l.trouble == nil {
		return 0, nil
	}
	return l.trouble.failures, l.trouble.err
}

// Contended reports whether another client keeps writing the lease.
func (l *Lease) Contended() bool { return l.trouble != nil && l.trouble.contended }

// Quiet reports whether nothing is remembered of failures and other clients.
func (l *Lease) Quiet() bool { return l.trouble == nil }

// HeldBy returns the holder of a lease in phase Foreign; else none.
func (l *Lease) HeldBy() Party {
	if l.phase != Foreign {
		return Party{}
	}
	return l.trouble.foreign.Party
}

// Why a lease is not held.
var (
	ErrNotHeld   = errors.New("it was not written yet, or is gone")
	ErrForeign   = errors.New("held by another process")
	ErrExpired   = errors.New("it was not renewed in time")
	ErrContended = errors.New("another process keeps writing it")
)

// holdMargin is the divisor of the duration for the part that is left when Holds
// reports that the lease has expired: time for actions that began before, and for
// clocks that don't run at the same rate.
const holdMargin = 20

// Holds returns nil while the lease is ours: it was renewed by this process, no
// answer since has said otherwise, and too little time has passed for another
// process to take it for expired. The wall clock only makes doubts: the monotonic
// one stands still while a machine is suspended.
func (l *Lease) Holds(r *Rules, now Instant) error {
	limit := r.Duration - r.Duration/holdMargin
	age := max(now.Since-l.renewed, time.Duration(now.Wall-l.renewedWall)*time.Microsecond)
	switch {
	case l.Contended():
		return ErrContended
	case l.held && age < limit:
		return nil
	case l.held:
		return ErrExpired
	case l.phase == Foreign:
		return ErrForeign
	}
	return ErrNotHeld
}

// enter changes the phase. It refuses to if the phase before is none of from.
func (l *Lease) enter(to Phase, from ...Phase) {
	if l.phase != to && !slices.Contains(from, l.phase) {
		l.inTrouble().illegal = fmt.Errorf("phase %v can't follow %v", to, l.phase)
		return
	}
	l.phase = to
}

func (l *Lease) becomePending()    { l.enter(Pending, Held, Foreign, GateClosed, NoOwner) }
func (l *Lease) becomeHeld()       { l.enter(Held, Pending, Foreign) }
func (l *Lease) becomeGateClosed() { l.enter(GateClosed, Pending, Held, Foreign, NoOwner) }

// becomeForeign gives the lease up to the holder in l.trouble.
func (l *Lease) becomeForeign() {
	l.forget(unknown)
	l.enter(Foreign, Pending, Held)
}

// becomeNoOwner stops all calls: a lease without its Node would be garbage.
func (l *Lease) becomeNoOwner() {
	l.forget(unknown)
	l.enter(NoOwner, Pending, Held, Foreign, GateClosed)
}

func (l *Lease) becomeStopped() {
	l.forget(unknown)
	l.enter(Stopped, Pending, Held, Foreign, GateClosed, NoOwner)
}

// forget drops the object, but not the highest RenewTime.
func (l *Lease) forget(k known) {
	l.known, l.uid, l.version, l.owner, l.extra, l.held = k, "", "", metav1.OwnerReference{}, nil, false
}

// inTrouble returns l.trouble, which it makes if necessary.
func (l *Lease) inTrouble() *trouble {
	if l.trouble == nil {
		l.trouble = &trouble{vanished: Never, createAfter: Never}
		for i := range l.trouble.foreignWrites {
			l.trouble.foreignWrites[i] = Never
		}
	}
	return l.trouble
}

// clearFailures ends the failures, and the trouble if none of it matters now.
func (l *Lease) clearFailures(r *Rules, now Instant) {
	t := l.trouble
	if t == nil {
		return
	}
	t.failures, t.err = 0, nil
	written := now.Since-t.foreignWrites[contendedAfter-1] <= r.Duration
	t.contended = t.contended && written
	if !written && !t.clockBehind && t.firstUnsure == 0 && t.foreign.Holder == "" && t.illegal == nil && now.Since-t.vanished > r.Duration {
		l.trouble = nil
	}
}

// isUnsure reports whether renewTime is that of a write of ours that may or may not
// have been stored.
func (l *Lease) isUnsure(renewTime int64) bool {
	t := l.trouble
	return t != nil && t.firstUnsure != 0 && t.firstUnsure <= renewTime && renewTime <= t.unsure[1].renewTime
}

// Check returns an error that names a broken invariant, or nil.
func (l *Lease) Check() error {
	t := l.trouble
	for _, invariant := range []struct {
		holds bool
		text  string
	}{
		{(l.uid != "") == (l.known == stale || l.known == current), "there is a UID if and only if the object is stale or current"},
		{(l.version != "") == (l.known == current), "there is a version if and only if the object is current"},
		{l.uid != "" || l.owner.UID == "" && l.extra == nil, "without a UID there are no owner and no extra fields"},
		{!l.held || l.uid != "" && l.renewed != Never, "a lease that is held has a UID and was renewed"},
		{l.phase != Held || l.renewed != Never, "in phase Held the lease was renewed"},
		{l.phase != Foreign && l.phase != NoOwner || !l.held && (l.turn != nil || l.uid == ""), "in phases Foreign and NoOwner it is not held, and between turns the object is unknown or missing"},
		{l.phase != Stopped || l.known == unknown, "after the end there is no object"},
		{t == nil || (t.err != nil) == (t.failures > 0), "there is an error if and only if there are failures"},
		{t == nil || t.firstUnsure <= t.unsure[1].renewTime && t.unsure[0].renewTime <= t.unsure[1].renewTime && (t.firstUnsure == 0) == (t.unsure[1].renewTime == 0), "unsure writes are in order, and there is a last one if there is a first one"},
		{l.phase != Foreign || t != nil && t.foreign.Holder != "", "in phase Foreign there is a holder"},
		{t == nil || slices.IsSorted(t.foreignWrites[:]), "the writes of others are in the order of their times"},
		{t == nil || !t.contended || t.foreignWrites[contendedAfter-1] != Never, "a contended lease was written by another client"},
	} {
		if !invariant.holds {
			return errors.New("lease: broken invariant: " + invariant.text)
		}
	}
	if t != nil && t.illegal != nil {
		return fmt.Errorf("lease: broken invariant: %w", t.illegal)
	}
	return nil
}
