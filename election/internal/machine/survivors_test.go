// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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

// A candidate that becomes a last resort withdraws its record at once.
func TestALastResortWithdrawsItsRecord(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	b.nothingUntil(125*time.Millisecond, Publish)
	b.answer(Publish, store(b.recordLease(b.instant()), "2"), nil)
	b.apply(time.Second, Described{Self: spec.Peer{Identity: "me", LastResort: true}})
	if s := b.expect(time.Second, Withdraw); len(records(s.Object.Annotations)) != 0 {
		t.Errorf("withdraws with %v", s.Object.Annotations)
	}
}

// A read that shows a renewal says nothing about the watch while the holder is not silent.
func TestAReadOfALiveHolderDoesNotEndTheWatch(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	b.apply(0, WatchLost{Gone: true})
	b.expect(time.Second, Read)
	b.answer(Read, leaseOf("x", 2, atVersion("2")), nil)
	if b.stream != 0 {
		t.Error("the next stream ends at once")
	}
}

// While the work drains, the renewals keep the preference that is obeyed.
func TestAPreferenceThatIsObeyedStays(t *testing.T) {
	b := newBench(t, func(r *Rules) { r.Coordinated = true })
	b.see(leaseOf("x", 1))
	b.see(leaseOf("me", 2, handedBy("x"), atVersion("2")))
	s := b.expect(0, Read)
	b.answer(s.Op, b.Machine.lease, nil)
	s = b.expect(0, Claim)
	b.answer(Claim, store(s.Object, "3"), nil)
	b.apply(0, Inquired{Name: "y", Outcome: *errServer}) // the word of the coordinator stands
	l := b.lease.DeepCopy()
	l.Spec.PreferredHolder = ptr.To("y")
	for _, holds := range []bool{true, false} {
		if got := spec.PreferredOf(b.renewed(l)); (got == "y") != holds {
			t.Errorf("prefers %q; the preference holds: %v", got, holds)
		}
		b.apply(0, Inquired{Name: "y", Outcome: *errNotFound})
	}
	b.now = verdictFor
	if got := spec.PreferredOf(b.renewed(l)); got != "y" {
		t.Errorf("prefers %q after the verdict has expired", got)
	}
}

// renewed returns a Lease as the registry renews it.
func (b *bench) renewed(l *coordinationv1.Lease) *coordinationv1.Lease {
	l = l.DeepCopy()
	b.registry.renew(b.now, l)
	return l
}

// The end of Run cancels a read. That is no failure after which something waits.
func TestACancelledReadIsAFailureOnlyWhileRunGoesOn(t *testing.T) {
	for _, stopping := range []bool{true, false} {
		b := newBench(t)
		b.expect(0, Read)
		if stopping {
			b.apply(0, Stopped{})
		}
		b.answer(Read, nil, &Outcome{Answer: Cancelled})
		if failed := b.failures > 0; failed == stopping {
			t.Errorf("stopping %v: counted as a failure: %v", stopping, failed)
		}
	}
}

// A webhook names another holder in each claim.
func TestAClaimWithoutEffectIsRepeatedLater(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, nil, errNotFound)
	s := b.expect(0, Claim)
	altered := store(s.Object, "10")
	altered.Spec.HolderIdentity = ptr.To("")
	altered.Spec.LeaseDurationSeconds = ptr.To[int32](1)
	b.answer(Claim, altered, nil)
	if b.phase != Standby {
		t.Fatal(b.phase)
	}
	b.reg.own.retryAt = time.Hour
	b.nothingUntil(StandbyRetry, Claim)
}

// An object is watched while nothing was missed. A stream goes on while it is read again.
func TestWhenTheObjectsAreWatched(t *testing.T) {
	b := newBench(t)
	if s := b.expect(0, Read); s.Watch != Unwatched {
		t.Errorf("watch %v before the Lease was read", s.Watch)
	}
	b.answer(Read, leaseOf("x", 1, atVersion("7")), nil)
	if s := b.at(0); s.Watch != Watched || s.Version != "7" {
		t.Errorf("watch %v from %q", s.Watch, s.Version)
	}
	b.apply(0, WatchLost{Gone: true})
	if s := b.at(0); s.Watch != Keep {
		t.Errorf("watch %v while the Lease is read again", s.Watch)
	}
	b.apply(0, WatchLost{})
	if s := b.at(0); s.Watch != Unwatched {
		t.Errorf("watch %v after it was refused", s.Watch)
	}

	u := NewUpkeep(testRules())
	watch := func() Watch {
		u.Apply(b.instant(), Tick{})
		if err := u.Check(); err != nil {
			t.Error(err)
		}
		return u.Next(b.instant()).Watch
	}
	if got := watch(); got != Unwatched {
		t.Errorf("watch %v before the LeaseCandidate was read", got)
	}
	object := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: "me", ResourceVersion: "7"}}
	u.Apply(b.instant(), Answered[*coordinationv1beta1.LeaseCandidate]{Op: Read, Object: object})
	if got := watch(); got != Watched {
		t.Errorf("watch %v of a LeaseCandidate that was read", got)
	}
	u.Apply(b.instant(), Seen[*coordinationv1beta1.LeaseCandidate]{Object: object, Deleted: true})
	if u.object != nil {
		t.Error("a deletion that the watch delivers is not observed")
	}
	u.Apply(b.instant(), Wanted{Candidacy{stopping: true}})
	if got := watch(); got != Unwatched || !u.Ended() {
		t.Errorf("watch %v at the end of Run; ended %v", got, u.Ended())
	}
}
