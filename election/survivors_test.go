// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/internal/statuserr"
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
		s := b.next(b.instant())
		switch {
		case s.op == OpRenew:
			l := store(s.object, tokenAfter(b.lease))
			b.answer(OpRenew, l, nil)
			stored(l)
		case s.op != "" || s.wake <= b.now:
			b.t.Fatalf("%q at %v, wakes at %v", s.op, b.now, s.wake)
		default:
			b.now = s.wake
		}
	}
}

// A candidate that does not answer is doubted for a minute, then for two, and for four.
func TestTheDoubtsAboutACandidateDouble(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.put("20", record{Peer: Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()})
	var offered []time.Duration
	b.renewFor(10*time.Minute, func(l *coordinationv1.Lease) {
		if o := b.term.offer; o != nil && o.stored && (len(offered) == 0 || offered[len(offered)-1] != o.since) {
			offered = append(offered, o.since)
		}
		if b.records["better"].Identity == "" { // dropped: it shows itself again
			b.put(tokenAfter(l), record{Peer: Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()})
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
		err      error
		min, max time.Duration
	}{
		"failed at once":   {0, errServer, 100 * time.Millisecond, time.Second},
		"failed slowly":    {time.Second, errServer, 0, 0},
		"throttled":        {0, statuserr.TooManyRequests(30), 100 * time.Millisecond, time.Second},
		"failed in a half": {minCall - 1, errServer, 100 * time.Millisecond, time.Second},
	} {
		b := newBench(t)
		b.lead()
		b.nothingUntil(3*time.Second, OpRenew)
		sent := b.instant()
		b.now += tc.took
		b.writeDone(b.instant(), sent, OpRenew, nil, tc.err)
		began := b.now
		for b.next(b.instant()).op != OpRenew {
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
	other := record{Peer: Peer{Identity: "other"}, Strategy: b.Strategy.Name()}
	present := func() bool { _, ok := b.records["other"]; return ok }
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
