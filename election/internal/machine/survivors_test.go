// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// put stores a record on the Lease that the bench leads.
func (b *bench) put(rv string, r record) {
	l := b.lease.DeepCopy()
	l.Annotations[recordKey(r.Identity)] = r.encode()
	b.see(store(l, rv))
}

// renewFor renews for a time, and calls after each renewal.
func (b *bench) renewFor(d time.Duration, stored func(*coordinationv1.Lease)) {
	b.t.Helper()
	for end := b.now + d; b.now < end; {
		s := b.next()
		switch {
		case s.Op == Renew:
			l := store(s.Object, tokenAfter(b.lease))
			b.answer(Renew, l, nil)
			stored(l)
		case s.Op != "" || s.Wake <= b.now:
			b.t.Fatalf("%q at %v, wakes at %v", s.Op, b.now, s.Wake)
		default:
			b.now = s.Wake
		}
	}
}

// A candidate that does not answer is doubted for a minute, then for two, and for four.
func TestTheDoubtsAboutACandidateDouble(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.put("20", record{Peer: spec.Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()})
	var offered []time.Duration
	b.renewFor(10*time.Minute, func(l *coordinationv1.Lease) {
		if o := b.reg.offer; o != nil && o.stored && (len(offered) == 0 || offered[len(offered)-1] != o.since) {
			offered = append(offered, o.since)
		}
		if b.reg.records["better"].Identity == "" { // dropped: it shows itself again
			b.put(tokenAfter(l), record{Peer: spec.Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()})
		}
	})
	want := []time.Duration{30 * time.Second, 95 * time.Second, 220 * time.Second, 465 * time.Second}
	if !slices.Equal(offered, want) {
		t.Errorf("offered at %v, want %v: each after the doubts since the end of the one before", offered, want)
	}
}

// A renewal that took long to fail is repeated at once, and one that failed at once after
// a wait. A leader does not wait for as long as the API server asks, because its term is
// at stake.
func TestALeaderRepeatsARenewalInTime(t *testing.T) {
	for name, tc := range map[string]struct {
		took     time.Duration
		err      *Outcome
		min, max time.Duration
	}{
		"failed at once":   {0, errServer, 100 * time.Millisecond, time.Second},
		"failed slowly":    {time.Second, errServer, 0, 0},
		"throttled":        {0, &Outcome{Answer: Failed, RetryAfter: 30 * time.Second}, 100 * time.Millisecond, time.Second},
		"failed in a half": {minCall - 1, errServer, 100 * time.Millisecond, time.Second},
	} {
		b := newBench(t)
		b.lead()
		b.nothingUntil(3*time.Second, Renew)
		sent := b.instant()
		b.now += tc.took
		b.answerTo(sent, Renew, nil, tc.err)
		began := b.now
		for b.next().Op != Renew {
			b.now += 10 * time.Millisecond
			if b.now > began+5*time.Second {
				t.Fatalf("%s: not repeated", name)
			}
		}
		if wait := b.now - began; wait < tc.min || wait > tc.max {
			t.Errorf("%s: repeated after %v, want %v to %v", name, wait, tc.min, tc.max)
		}
	}
}

// A record that changes lives, and one that does not is dropped.
func TestARecordThatChangesDoesNotAge(t *testing.T) {
	b := newBench(t)
	b.lead()
	other := record{Peer: spec.Peer{Identity: "other"}, Strategy: b.Strategy.Name()}
	present := func() bool { _, ok := b.reg.records["other"]; return ok }
	b.put("20", other)
	nothing := func(*coordinationv1.Lease) {}
	b.renewFor(20*time.Minute, nothing)
	other.Beat++
	b.put(tokenAfter(b.lease), other)
	b.renewFor(30*time.Minute, nothing)
	if !present() {
		t.Error("dropped half an hour after it changed")
	}
	b.renewFor(2*time.Minute, nothing)
	if present() {
		t.Error("not dropped although it did not change for longer than recordTTL")
	}
}
