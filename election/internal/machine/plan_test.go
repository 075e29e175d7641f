// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

func TestClaims(t *testing.T) {
	s := time.Second
	better := leaseOf("x", 1, func(l *coordinationv1.Lease) {
		l.Annotations = make(map[string]string)
		for _, r := range []record{{Peer: spec.Peer{Identity: "x", Priority: 9}}, {Peer: spec.Peer{Identity: "y", Priority: 8}}, {Peer: spec.Peer{Identity: "z", Priority: 7}}, {Peer: spec.Peer{Identity: "worse", Priority: -1}}} {
			r.Strategy = byPriority{}.Name()
			l.Annotations[recordKey(r.Identity)] = r.encode()
		}
	})
	for name, tc := range map[string]struct {
		lease  *coordinationv1.Lease
		change func(*Rules)
		want   time.Duration
	}{
		"absent":                {nil, nil, 0},
		"released":              {leaseOf("", 1, released), nil, 0},
		"held":                  {leaseOf("x", 1), nil, 15 * s},
		"held, two come before": {better, nil, 16 * s},
		"claimed before":        {leaseOf("me", 1, marked), nil, 0},
		"unknown strategy of a newer one": {leaseOf("x", 1, func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{recordKey("n"): record{Peer: spec.Peer{Identity: "n", BinaryVersion: "2.0.0"}, Strategy: "example.com/new"}.encode()}
		}), nil, 15*s + 2250*time.Millisecond},
		"native, absent":         {nil, func(s *Rules) { s.Coordinated = true }, 16250 * time.Millisecond},
		"native, held":           {leaseOf("x", 1), func(s *Rules) { s.Coordinated = true }, 31250 * time.Millisecond},
		"native, claimed before": {leaseOf("me", 1, marked), func(s *Rules) { s.Coordinated = true }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(s *Rules) {
				if tc.change != nil {
					tc.change(s)
				}
			})
			b.expect(0, Read)
			var err *Outcome
			if tc.lease == nil {
				err = errNotFound
			}
			b.answer(Read, tc.lease, err)
			var claim Step
			for claim.Op != Claim {
				switch claim = b.next(); claim.Op {
				case Publish:
					b.answer(Publish, nil, errServer) // never mind
				case Read:
					b.answer(Read, tc.lease, err)
				case "":
					b.now = claim.Wake
				}
				if b.now > time.Hour {
					t.Fatal("never claims")
				}
			}
			if b.now != tc.want {
				t.Errorf("claims at %v, want %v", b.now, tc.want)
			}
			l := claim.Object
			if spec.HolderOf(l) != "me" || *l.Spec.LeaseDurationSeconds != 15 || !l.Spec.AcquireTime.Equal(l.Spec.RenewTime) {
				t.Errorf("claims with %+v", l.Spec)
			}
			wantTransitions := int32(5)
			if tc.lease == nil {
				wantTransitions = 0
			} else if spec.HolderOf(tc.lease) == "me" {
				wantTransitions = 4 // counted by whom it was assigned
			}
			if *l.Spec.LeaseTransitions != wantTransitions {
				t.Errorf("transitions %d, want %d", *l.Spec.LeaseTransitions, wantTransitions)
			}
			if got := records(l.Annotations); tc.lease == better && (len(got) != 2 || got["worse"].Identity == "") {
				t.Errorf("records %v: who did not claim in its turn is dropped", got)
			}
		})
	}
}

// A leader renews, and stops at its deadline, exactly.
func TestLeaderStopsAtItsDeadline(t *testing.T) {
	b := newBench(t)
	b.lead()
	if _, ok := effect[TermStarted](b); !ok || b.term.deadline != 10*time.Second {
		t.Errorf("work begins: %v, until %v", ok, b.term.deadline)
	}
	s := b.nothingUntil(3*time.Second, Renew)
	b.answer(Renew, store(s.Object, "11"), nil)
	b.nothingUntil(6*time.Second, Renew)
	for b.now < 13*time.Second-1 && b.phase == Leading {
		b.now = min(b.now+100*time.Millisecond, 13*time.Second-1)
		if b.busy == Renew {
			b.answer(Renew, nil, errServer)
		}
		b.next()
	}
	if _, ok := effect[WorkCancelled](b); ok || b.phase != Leading {
		t.Fatal("stopped before the deadline")
	}
	b.at(13 * time.Second)
	if e, ok := effect[WorkCancelled](b); !ok || e.Cause != TimeOut || b.phase != Ended {
		t.Errorf("at the deadline: %v, %+v", b.phase, e)
	}
}

// The timeout of a leader shrinks with the time that is left.
func TestLeaderTimeouts(t *testing.T) {
	b := newBench(t)
	b.lead()
	for at, want := range map[time.Duration]time.Duration{
		0: 5 * time.Second, 3 * time.Second: 3500 * time.Millisecond, 9 * time.Second: 500 * time.Millisecond, 9900 * time.Millisecond: 100 * time.Millisecond,
	} {
		if got := b.leaderTimeout(at); got != want {
			t.Errorf("at %v: %v, want %v", at, got, want)
		}
	}
}

// The observations that end a term, and others.
func TestLoss(t *testing.T) {
	mine := func(l *coordinationv1.Lease) *coordinationv1.Lease { return store(l, "12") }
	for name, tc := range map[string]struct {
		after func(*coordinationv1.Lease) *coordinationv1.Lease
		lost  bool
	}{
		"an annotation": {func(l *coordinationv1.Lease) *coordinationv1.Lease { l.Annotations["x"] = "y"; return mine(l) }, false},
		"another holder": {func(l *coordinationv1.Lease) *coordinationv1.Lease {
			l.Spec.HolderIdentity = ptr.To("x")
			return mine(l)
		}, true},
		"no holder": {func(l *coordinationv1.Lease) *coordinationv1.Lease { l.Spec.HolderIdentity = nil; return mine(l) }, true},
		"another term": {func(l *coordinationv1.Lease) *coordinationv1.Lease {
			l.Spec.LeaseTransitions = ptr.To[int32](9)
			return mine(l)
		}, true},
		"another object": {func(l *coordinationv1.Lease) *coordinationv1.Lease { l = mine(l); l.UID = "u2"; return l }, true},
		"deleted":        {func(*coordinationv1.Lease) *coordinationv1.Lease { return nil }, true},
		"an older event": {func(l *coordinationv1.Lease) *coordinationv1.Lease {
			l.Spec.HolderIdentity, l.ResourceVersion = ptr.To("x"), "9"
			return l
		}, false},
		"a renewTime that somebody removed": {func(l *coordinationv1.Lease) *coordinationv1.Lease { l.Spec.RenewTime = nil; return mine(l) }, false},
	} {
		b := newBench(t)
		b.lead()
		b.told = nil
		b.see(tc.after(b.lease.DeepCopy()))
		e, ok := effect[WorkCancelled](b)
		if ok != tc.lost || ok && e.Cause != Lost {
			t.Errorf("%s: lost %v, %v", name, ok, e.Cause)
		}
	}
}

// A conflict is answered by one GET, or by none if the watch was faster; a
// storm of them backs off.
func TestConflicts(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.nothingUntil(3*time.Second, Renew)
	l := b.lease.DeepCopy()
	l.Annotations["x"] = "y"
	b.see(store(l, "12"))
	b.answer(Renew, nil, errConflict)
	if s := b.expect(b.now, Renew); s.Object.ResourceVersion != "12" {
		t.Errorf("renews version %s", s.Object.ResourceVersion)
	}
	began, requests := b.now, 0
	for b.phase == Leading {
		switch b.busy {
		case Renew:
			requests++
			b.answer(Renew, nil, errConflict)
		case Read:
			requests++
			b.answer(Read, b.lease, nil)
		}
		if s := b.next(); s.Op == "" {
			b.now = s.Wake
		}
		if requests > 1000 {
			t.Fatalf("%d requests in %v", requests, b.now-began)
		}
	}
	if b.now != 10*time.Second || requests > 60 {
		t.Errorf("%d requests until %v", requests, b.now)
	}
}

// Offers: made after MinTenure, to the best; answered by a hand-over after the
// work has returned.
func TestOfferAndHandOver(t *testing.T) {
	b := newBench(t)
	b.lead()
	put := func(rv string, r record) {
		l := b.lease.DeepCopy()
		l.Annotations[recordKey(r.Identity)] = r.encode()
		b.see(store(l, rv))
	}
	put("20", record{Peer: spec.Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()})
	rv := 100
	renewUntil := func(stop func() bool) {
		t.Helper()
		for !stop() {
			s := b.next()
			if s.Op == Renew {
				rv++
				b.answer(Renew, store(s.Object, "1"+time.Duration(rv).String()[:3]), nil)
			} else {
				b.now = s.Wake
			}
			if b.now > time.Hour {
				t.Fatal("for ever")
			}
		}
	}
	renewUntil(func() bool { return b.reg.offer != nil && b.reg.offer.stored })
	if b.now != minTenure || b.reg.offer.to != "better" {
		t.Fatalf("offered to %s at %v", b.reg.offer.to, b.now)
	}
	put("2000", record{Peer: spec.Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name(), Ack: b.reg.offer.id})
	b.next()
	if e, ok := effect[WorkCancelled](b); !ok || e.Cause != Superseded || b.phase != Draining {
		t.Fatalf("%v: %+v", b.phase, e)
	}
	if b.busy == Renew {
		b.answer(Renew, nil, errServer)
	}
	b.apply(b.now, WorkReturned{})
	if e, ok := effect[TermEnded](b); !ok || e.Cause != Superseded {
		t.Errorf("the work is said to have returned by itself: %+v", e)
	}
	b.retryAt = 0
	s := b.expect(b.now, HandOver)
	l := s.Object
	if spec.HolderOf(l) != "better" || l.Annotations[handoverAnnotation] != "me" || *l.Spec.LeaseTransitions != 1 || *l.Spec.LeaseDurationSeconds != handoverSeconds {
		t.Errorf("handed to %s with %d transitions, for %d s: %v", spec.HolderOf(l), *l.Spec.LeaseTransitions, *l.Spec.LeaseDurationSeconds, l.Annotations)
	}
	if _, offered := l.Annotations[offerAnnotation]; offered {
		t.Error("the offer is still there")
	}
}
