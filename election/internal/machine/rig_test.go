// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// The outcomes of requests; nil is a success.
var (
	errConflict = &Outcome{Answer: Conflict}
	errNotFound = &Outcome{Answer: Missing}
	errServer   = &Outcome{Answer: Failed, Unsure: true}
)

// The times of the candidates in tests: the defaults of package election.
const (
	renewDeadline   = 10 * time.Second
	minTenure       = 30 * time.Second
	shutdownTimeout = 5 * time.Second
)

// byPriority is a strategy.
type byPriority struct{}

func (byPriority) Name() string               { return "kubewright.dev/HighestPriority.First" }
func (byPriority) Compare(a, b spec.Peer) int { return cmp.Compare(b.Priority, a.Priority) }
func (byPriority) Eligible(spec.Peer) bool    { return true }
func (byPriority) Preempts(a, b spec.Peer) bool {
	return a.Priority > b.Priority
}

// bench drives a machine by hand, and checks its invariants after each event. Its time
// is the monotonic clock.
type bench struct {
	*Machine
	reg  *onLease // nil with the other registry
	t    *testing.T
	now  time.Duration
	told []Effect // since the last call of effect
}

func testRules() Rules {
	return Rules{
		ID: "me", Lease: types.NamespacedName{Namespace: "ns", Name: "lease"}, Strategy: byPriority{}, Exclusive: true,
		LeaseDuration: 15 * time.Second, RenewDeadline: renewDeadline, RenewInterval: 3 * time.Second,
		AckTimeout: 5 * time.Second, MinTenure: minTenure,
		CallTimeout: 5 * time.Second, ShutdownTimeout: shutdownTimeout, Random: func() float64 { return 0.5 },
	}
}

func newBench(t *testing.T, change ...func(*Rules)) *bench {
	rules := testRules()
	for _, f := range change {
		f(&rules)
	}
	b := &bench{t: t}
	b.Machine = New(rules, spec.Peer{}, b.instant())
	b.reg, _ = b.registry.(*onLease)
	return b
}

func (b *bench) instant() Instant { return Instant{Mono: b.now, Wall: time.Unix(1e9, 0).Add(b.now)} }

// apply applies an event at a time. Nothing may lower base, and no invariant may break.
func (b *bench) apply(at time.Duration, e Event) {
	b.t.Helper()
	b.now = at
	base := b.base
	b.told = append(b.told, b.Apply(b.instant(), e)...)
	if b.base < base {
		b.t.Fatalf("%T lowers base from %v to %v", e, base, b.base)
	}
	if err := b.Check(); err != nil {
		b.t.Fatalf("after %T: %v", e, err)
	}
}

// next returns the step at now, and sends its request.
func (b *bench) next() Step {
	b.t.Helper()
	b.apply(b.now, Tick{})
	s := b.Next(b.instant())
	if s.Op != "" {
		b.apply(b.now, Sent{s})
		if again := b.Next(b.instant()); again.Wake != s.Wake || again.Abort != s.Abort {
			b.t.Fatalf("at %v: %q wakes at %v, and at %v once it is sent", b.now, s.Op, s.Wake, again.Wake)
		}
	}
	return s
}

// at moves to a time and returns the step there.
func (b *bench) at(at time.Duration) Step {
	b.now = at
	return b.next()
}

// expect fails unless the step at that time is the given request.
func (b *bench) expect(at time.Duration, op Op) Step {
	b.t.Helper()
	s := b.at(at)
	if s.Op != op {
		b.t.Fatalf("at %v (%v): %q, want %q; wakes at %v", at, b.phase, s.Op, op, s.Wake)
	}
	if s.Wake <= at {
		b.t.Fatalf("at %v: wakes at %v", at, s.Wake)
	}
	return s
}

// nothingUntil checks that nothing is sent before a time, at which op is.
func (b *bench) nothingUntil(at time.Duration, op Op) Step {
	b.t.Helper()
	for {
		s := b.next()
		if s.Op != "" {
			if b.now != at || s.Op != op {
				b.t.Fatalf("%q at %v, want %q at %v", s.Op, b.now, op, at)
			}
			return s
		}
		if s.Wake <= b.now || b.now > at {
			b.t.Fatalf("at %v wakes at %v, want %q at %v", b.now, s.Wake, op, at)
		}
		b.now = s.Wake
	}
}

func (b *bench) see(l *coordinationv1.Lease) {
	b.t.Helper()
	b.apply(b.now, Seen[*coordinationv1.Lease]{Object: l, Deleted: l == nil})
}

// answer answers the request under way, which was sent now.
func (b *bench) answer(op Op, l *coordinationv1.Lease, failed *Outcome) {
	b.t.Helper()
	b.answerTo(b.instant(), op, l, failed)
}

// answerTo answers the request that was sent at an instant.
func (b *bench) answerTo(sent Instant, op Op, l *coordinationv1.Lease, failed *Outcome) {
	b.t.Helper()
	e := Answered[*coordinationv1.Lease]{Op: op, At: sent, Object: l}
	if failed != nil {
		e.Outcome = *failed
	}
	b.apply(b.now, e)
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
	b.expect(0, Read)
	b.answer(Read, nil, errNotFound)
	s := b.expect(0, Claim)
	b.answer(Claim, store(s.Object, "10"), nil)
	if b.phase != Leading {
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
