// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// renewedSince makes acquireTime older than renewTime.
func renewedSince(l *coordinationv1.Lease) {
	l.Spec.AcquireTime = ptr.To(metav1.NewMicroTime(l.Spec.RenewTime.Add(-time.Hour)))
}

func minute(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = 60 }

func oneSecond(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = 1 }

// The second state is read 10 s after the first, when other states may have been
// missed.
func TestALeaseThatWasVacatedUnseenIsLeftAloneForItsDuration(t *testing.T) {
	const s = time.Second
	emptied := leaseOf("", 2, renewedSince)
	for name, tc := range map[string]struct {
		before, after *coordinationv1.Lease
		from          source
		want          time.Duration
	}{
		"emptied":                        {leaseOf("x", 1), emptied, afterGap, 25 * s},
		"emptied, the watch saw all":     {leaseOf("x", 1), emptied, inOrder, 15 * s},
		"emptied, after our own term":    {leaseOf("me", 1, marked), emptied, afterGap, 25 * s},
		"emptied, with a long duration":  {leaseOf("x", 1), leaseOf("", 2, renewedSince, func(l *coordinationv1.Lease) { *l.Spec.LeaseDurationSeconds = 60 }), afterGap, 70 * s},
		"emptied, with a short duration": {leaseOf("x", 1), leaseOf("", 2, renewedSince, oneSecond), afterGap, 25 * s},
		"deleted":                        {leaseOf("x", 1), nil, afterGap, 25 * s},
		"deleted, of a minute":           {leaseOf("x", 1, minute), nil, afterGap, 70 * s},
		"released":                       {leaseOf("x", 1), leaseOf("", 2, released), afterGap, 10 * s},
		"released, after our own term":   {leaseOf("me", 1, marked), leaseOf("", 2, released), afterGap, 10 * s},
		"created and released":           {nil, leaseOf("", 2, released), afterGap, 10 * s},
		"made ours":                      {leaseOf("x", 1), leaseOf("me", 2), afterGap, 25 * s},
		"made ours, was released":        {leaseOf("", 1, released), leaseOf("me", 2), afterGap, 25 * s},
		"made ours again":                {leaseOf("me", 1, marked), leaseOf("me", 2), afterGap, 25 * s},
		"made ours again, seen":          {leaseOf("me", 1, marked), leaseOf("me", 2), inOrder, 25 * s},
		"renewed by a twin":              {leaseOf("me", 1, marked), leaseOf("me", 2, renewedSince), inOrder, 25 * s},
		"handed to us":                   {leaseOf("x", 1), leaseOf("me", 2, handedBy("x")), afterGap, 0},
		"restored, released":             {leaseOf("x", 5), leaseOf("", 2, released), unrelated, 25 * s},
		"restored, as it was":            {leaseOf("", 2, released), leaseOf("", 2, released), unrelated, 25 * s},
		"absent, absent after a poll":    {nil, nil, afterGap, 0},
		"absent, absent after a claim":   {nil, nil, unrelated, 25 * s},
		"restored, ours":                 {leaseOf("x", 5), leaseOf("me", 2), unrelated, 25 * s},
	} {
		seen := sighting{me: "me", def: 15 * s, exclusive: true}
		seen.see(0, tc.before, inOrder)
		seen.see(10*s, tc.after, tc.from)
		got := seen.freeAt()
		if spec.HolderOf(seen.lease) == "me" {
			got = seen.base
		}
		if got != tc.want {
			t.Errorf("%s: free at %v, want %v", name, got, tc.want)
		}
	}
	again := sighting{me: "me", def: 15 * s, exclusive: true, assignable: true}
	again.see(0, leaseOf("me", 1, marked), inOrder)
	again.see(10*s, leaseOf("me", 2), inOrder)
	if again.base != 0 {
		t.Errorf("assigned again by a coordinator: free at %v, want at once", again.base)
	}
	own := sighting{me: "me", def: 15 * s, written: []metav1.MicroTime{*leaseOf("me", 2).Spec.RenewTime}}
	own.see(0, leaseOf("x", 1), inOrder)
	own.see(20*s, leaseOf("me", 2), afterGap)
	if own.base != 15*s {
		t.Errorf("our own unanswered claim: free at %v, want the end of the lease before it", own.base)
	}
}

// The holder of a minute may not have noticed that another client shortened it, and
// renewed before the deletion, which a gap hides.
func TestAShortenedDurationIsNotForgotten(t *testing.T) {
	const s = time.Second
	seen := sighting{me: "me", def: 15 * s}
	seen.see(0, leaseOf("x", 1, minute), inOrder)
	seen.see(1*s, leaseOf("x", 1, shorter), inOrder)
	seen.see(2*s, leaseOf("x", 1, shorter, released), inOrder)
	if got := seen.freeAt(); got != 60*s {
		t.Errorf("free at %v after it was shortened twice", got)
	}
	seen.see(10*s, nil, afterGap)
	if got := seen.freeAt(); got != 70*s {
		t.Errorf("free at %v after the deletion", got)
	}
	seen.see(80*s, leaseOf("y", 4), inOrder)
	seen.see(90*s, nil, afterGap)
	if got := seen.freeAt(); got != 105*s {
		t.Errorf("free at %v after the next term, which had the usual duration", got)
	}
}

func TestAnEmptiedLeaseIsNoReleaseForANewcomer(t *testing.T) {
	seen := sighting{me: "me", def: 15 * time.Second}
	seen.see(time.Second, leaseOf("", 1, oneSecond, renewedSince), afterGap)
	if got := seen.freeAt(); got != 16*time.Second {
		t.Errorf("free at %v, want after a lease of ours", got)
	}
}

// There is no Lease before a claim and after it. If the claim may have met another
// candidate's, that one may lead.
func TestAnAbsentLeaseIsWaitedForAfterAFailedClaim(t *testing.T) {
	for name, err := range map[string]*Outcome{"no answer": errServer, "another candidate was faster": errConflict} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.expect(0, Read)
			b.answer(Read, nil, errNotFound)
			b.expect(0, Claim)
			b.answer(Claim, nil, err)
			b.nothingUntil(b.retryAt, Read)
			b.answer(Read, nil, errNotFound)
			b.nothingUntil(b.now+15*time.Second, Claim)
		})
	}
}

// The claims can't have met another candidate's. A candidate that polls, and waited after
// each read, would never claim.
func TestAnAbsentLeaseIsClaimedBetweenPolls(t *testing.T) {
	for name, err := range map[string]*Outcome{"forbidden": {Answer: Failed}, "no namespace": errNotFound} {
		b := newBench(t)
		b.expect(0, Read)
		b.lost(0, false)
		claims := 0
		b.answer(Read, nil, errNotFound)
		for b.now < 30*time.Second {
			switch s := b.next(); s.Op {
			case "":
				b.now = s.Wake
			case Read:
				b.answer(Read, nil, errNotFound)
			default:
				claims++
				b.answer(s.Op, nil, err)
			}
		}
		if claims < 6 {
			t.Errorf("%s: %d claims in 30 s", name, claims)
		}
	}
}

// The watch has shown that no other candidate leads.
func TestALeaderWhoseLeaseIsDeletedClaimsItAtOnce(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.see(nil)
	b.apply(0, WorkReturned{})
	b.expect(0, Read)
	b.answer(Read, nil, errNotFound)
	b.expect(0, Claim)
}

func TestALeaderThatSeesTheRenewalOfATwinEndsItsTerm(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.told = nil
	l := b.lease.DeepCopy()
	l.ResourceVersion, l.Annotations = "11", map[string]string{"edited": "by hand"}
	b.see(l)
	if b.phase != Leading {
		t.Fatalf("%v after an annotation was edited", b.phase)
	}
	l = l.DeepCopy()
	l.ResourceVersion, l.Spec.RenewTime = "12", ptr.To(metav1.NewMicroTime(l.Spec.RenewTime.Add(time.Millisecond)))
	b.see(l)
	end, ok := effect[WorkCancelled](b)
	if b.phase != Ended || !ok || end.Cause != Lost {
		t.Errorf("%v, %v", b.phase, end.Cause)
	}
}
