// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"errors"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

var (
	errConflict = apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "lease", errors.New("changed"))
	errNotFound = apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "lease")
	errServer   = apierrors.NewInternalError(errors.New("broken"))
)

// String returns the name of the phase, for failures.
func (p phase) String() string {
	return [...]string{"standby", "leading", "draining", "ended", "finished"}[p]
}

// bench drives a machine by hand. Its time is the monotonic clock.
type bench struct {
	*machine
	t   *testing.T
	now time.Duration
}

func newBench(t *testing.T, change ...func(*setup)) *bench {
	s := setup{
		id: "me", random: func() float64 { return 0.5 },
		Config: Config{
			Lease: types.NamespacedName{Namespace: "ns", Name: "lease"}, ExclusiveIdentity: true, Strategy: HighestPriority(nil),
			Timing: Timing{}.WithDefaults(), FallbackAfter: DefaultLeaseDuration, CallTimeout: DefaultCallTimeout, ShutdownTimeout: DefaultShutdownTimeout,
		},
	}
	for _, f := range change {
		f(&s)
	}
	b := &bench{t: t}
	b.machine = newMachine(s, Peer{Identity: "me"}, b.instant())
	return b
}

func (b *bench) instant() instant { return instant{mono: b.now, wall: time.Unix(1e9, 0).Add(b.now)} }

// at moves to a time and returns the step there.
func (b *bench) at(at time.Duration) move {
	b.now = at
	return b.next(b.instant())
}

// expect fails unless the step at that time is the given request.
func (b *bench) expect(at time.Duration, op Op) move {
	b.t.Helper()
	s := b.at(at)
	if s.op != op {
		b.t.Fatalf("at %v (%v): %q, want %q; wakes at %v", at, b.phase, s.op, op, s.wake)
	}
	if s.wake <= at {
		b.t.Fatalf("at %v: wakes at %v", at, s.wake)
	}
	return s
}

// nothingUntil checks that nothing is sent before a time, at which op is.
func (b *bench) nothingUntil(at time.Duration, op Op) move {
	b.t.Helper()
	for {
		s := b.next(b.instant())
		if s.op != "" {
			if b.now != at || s.op != op {
				b.t.Fatalf("%q at %v, want %q at %v", s.op, b.now, op, at)
			}
			return s
		}
		if s.wake <= b.now || b.now > at {
			b.t.Fatalf("at %v wakes at %v, want %q at %v", b.now, s.wake, op, at)
		}
		b.now = s.wake
	}
}

func (b *bench) see(l *coordinationv1.Lease) { b.observe(b.instant(), l, l == nil, inOrder) }

func (b *bench) answer(op Op, l *coordinationv1.Lease, err error) {
	if op == OpRead {
		b.readDone(b.instant(), b.instant(), l, err)
	} else {
		b.writeDone(b.instant(), b.instant(), op, l, err)
	}
}

// store returns the object that the API server stores.
func store(l *coordinationv1.Lease, rv string) *coordinationv1.Lease {
	l = l.DeepCopy()
	l.ResourceVersion, l.UID = rv, "u1"
	return l
}

// tokenAfter returns the next resourceVersion.
func tokenAfter(l *coordinationv1.Lease) string { return strconv.FormatUint(tokenOf(l)+1, 10) }

// lead makes the machine lead, from 0 on.
func (b *bench) lead() {
	b.t.Helper()
	b.expect(0, OpRead)
	b.answer(OpRead, nil, errNotFound)
	s := b.expect(0, OpClaim)
	b.answer(OpClaim, store(s.object, "10"), nil)
	if b.phase != leading {
		b.t.Fatal(b.phase)
	}
}

// effect returns the first effect of a type since the last call.
func effect[T any](b *bench) (found T, ok bool) {
	for _, e := range b.told {
		if got, is := e.(T); is && !ok {
			found, ok = got, true
		}
	}
	b.told = nil
	return found, ok
}

func TestClaims(t *testing.T) {
	s := time.Second
	better := leaseOf("x", 1, func(l *coordinationv1.Lease) {
		l.Annotations = make(map[string]string)
		for _, r := range []record{{Peer: Peer{Identity: "x", Priority: 9}}, {Peer: Peer{Identity: "y", Priority: 8}}, {Peer: Peer{Identity: "z", Priority: 7}}, {Peer: Peer{Identity: "worse", Priority: -1}}} {
			r.Strategy = HighestPriority(nil).Name()
			l.Annotations[recordKey(r.Identity)] = r.encode()
		}
	})
	for name, tc := range map[string]struct {
		lease  *coordinationv1.Lease
		change func(*setup)
		want   time.Duration
	}{
		"absent":                {nil, nil, 0},
		"released":              {leaseOf("", 1, released), nil, 0},
		"held":                  {leaseOf("x", 1), nil, 15 * s},
		"held, two come before": {better, nil, 16 * s},
		"claimed before":        {leaseOf("me", 1, marked), nil, 0},
		"unknown strategy of a newer one": {leaseOf("x", 1, func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{recordKey("n"): record{Peer: Peer{Identity: "n", BinaryVersion: "2.0.0"}, Strategy: "example.com/new"}.encode()}
		}), nil, 15*s + 2250*time.Millisecond},
		"native, absent":         {nil, func(s *setup) { s.Registry.native = true }, 16250 * time.Millisecond},
		"native, held":           {leaseOf("x", 1), func(s *setup) { s.Registry.native = true }, 31250 * time.Millisecond},
		"native, claimed before": {leaseOf("me", 1, marked), func(s *setup) { s.Registry.native = true }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(s *setup) {
				if tc.change != nil {
					tc.change(s)
				}
			})
			b.expect(0, OpRead)
			var err error
			if tc.lease == nil {
				err = errNotFound
			}
			b.answer(OpRead, tc.lease, err)
			var claim move
			for claim.op != OpClaim {
				switch claim = b.next(b.instant()); claim.op {
				case OpPublish:
					b.answer(OpPublish, nil, errServer) // never mind
				case OpRead:
					b.answer(OpRead, tc.lease, err)
				case "":
					b.now = claim.wake
				}
				if b.now > time.Hour {
					t.Fatal("never claims")
				}
			}
			if b.now != tc.want {
				t.Errorf("claims at %v, want %v", b.now, tc.want)
			}
			l := claim.object
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
	if _, ok := effect[TermStarted](b); !ok || b.term.until() != 10*time.Second {
		t.Errorf("work begins: %v, until %v", ok, b.term.until())
	}
	s := b.nothingUntil(3*time.Second, OpRenew)
	b.answer(OpRenew, store(s.object, "11"), nil)
	b.nothingUntil(6*time.Second, OpRenew)
	for b.now < 13*time.Second-1 && b.phase == leading {
		b.now = min(b.now+100*time.Millisecond, 13*time.Second-1)
		if b.busy == OpRenew {
			b.answer(OpRenew, nil, errServer)
		}
		b.next(b.instant())
	}
	if _, ok := effect[workCancelled](b); ok || b.phase != leading {
		t.Fatal("stopped before the deadline")
	}
	s = b.at(13 * time.Second)
	if e, ok := effect[workCancelled](b); !ok || !errors.Is(e.cause, ErrExpired) || b.phase != ended {
		t.Errorf("at the deadline: %v, %+v", b.phase, e)
	}
	if b.busy == OpRenew && !s.abort {
		t.Error("the renewal goes on after the term")
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
		e, ok := effect[workCancelled](b)
		if ok != tc.lost || ok && !errors.Is(e.cause, ErrLost) {
			t.Errorf("%s: lost %v, %v", name, ok, e.cause)
		}
	}
}

// A conflict is answered by one GET, or by none if the watch was faster; a
// storm of them backs off.
func TestConflicts(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.nothingUntil(3*time.Second, OpRenew)
	l := b.lease.DeepCopy()
	l.Annotations["x"] = "y"
	b.see(store(l, "12"))
	b.answer(OpRenew, nil, errConflict)
	if s := b.expect(b.now, OpRenew); s.object.ResourceVersion != "12" {
		t.Errorf("renews version %s", s.object.ResourceVersion)
	}
	began, requests := b.now, 0
	for b.phase == leading {
		switch b.busy {
		case OpRenew:
			requests++
			b.answer(OpRenew, nil, errConflict)
		case OpRead:
			requests++
			b.answer(OpRead, b.lease, nil)
		}
		if s := b.next(b.instant()); s.op == "" {
			b.now = s.wake
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
	put("20", record{Peer: Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()})
	rv := 100
	renewUntil := func(stop func() bool) {
		t.Helper()
		for !stop() {
			s := b.next(b.instant())
			if s.op == OpRenew {
				rv++
				b.answer(OpRenew, store(s.object, "1"+time.Duration(rv).String()[:3]), nil)
			} else {
				b.now = s.wake
			}
			if b.now > time.Hour {
				t.Fatal("for ever")
			}
		}
	}
	renewUntil(func() bool { return b.term.offer != nil && b.term.offer.stored })
	if b.now != DefaultMinTenure || b.term.offer.to != "better" {
		t.Fatalf("offered to %s at %v", b.term.offer.to, b.now)
	}
	put("2000", record{Peer: Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name(), Ack: b.term.offer.id})
	b.next(b.instant())
	if e, ok := effect[workCancelled](b); !ok || !errors.Is(e.cause, ErrSuperseded) || b.phase != draining {
		t.Fatalf("%v: %+v", b.phase, e)
	}
	if b.busy == OpRenew {
		b.answer(OpRenew, nil, errServer)
	}
	if b.finishWork(b.now) {
		t.Error("the work is said to have returned by itself")
	}
	b.retryAt = 0
	s := b.expect(b.now, OpHandOver)
	l := s.object
	if spec.HolderOf(l) != "better" || l.Annotations[handoverAnnotation] != "me" || *l.Spec.LeaseTransitions != 1 || *l.Spec.LeaseDurationSeconds != handoverSeconds {
		t.Errorf("handed to %s with %d transitions, for %d s: %v", spec.HolderOf(l), *l.Spec.LeaseTransitions, *l.Spec.LeaseDurationSeconds, l.Annotations)
	}
	if _, offered := l.Annotations[offerAnnotation]; offered {
		t.Error("the offer is still there")
	}
}
