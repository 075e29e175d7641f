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
	if s := b.expect(time.Second, Withdraw); s.Object.Annotations[recordKey("me")] != "" {
		t.Errorf("withdraws with %v", s.Object.Annotations)
	}
}

// A read that shows a change says nothing about the watch while no holder is silent.
func TestAReadOfALiveHolderDoesNotEndTheWatch(t *testing.T) {
	for name, before := range map[string]*coordinationv1.Lease{"held": leaseOf("x", 1), "free": leaseOf("", 1)} {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, before, nil)
		b.apply(0, WatchLost{Gone: true})
		b.expect(time.Second, Read)
		b.answer(Read, leaseOf("x", 2, atVersion("2")), nil)
		if b.stream != 0 {
			t.Errorf("%s: the next stream ends at once", name)
		}
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
	b.registry.write(b.now, Renew, l)
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
}

// Other candidates use the other registry. That is reported once.
func TestMixedRegistriesAreReportedOnce(t *testing.T) {
	strategy := func(l *coordinationv1.Lease) {
		l.Spec.Strategy = ptr.To(coordinationv1.OldestEmulationVersion)
	}
	recorded := func(l *coordinationv1.Lease) {
		l.Annotations = map[string]string{recordKey("x"): record{Peer: spec.Peer{Identity: "x"}}.encode()}
	}
	for name, tc := range map[string]struct {
		coordinated bool
		holder      string
		mark        func(*coordinationv1.Lease)
		want        int
	}{
		"a coordinator has named the holder": {false, "x", strategy, 1},
		"it has named nobody":                {false, "", strategy, 0},
		"it has named this candidate":        {false, "me", strategy, 0},
		"there is a record":                  {true, "x", recorded, 1},
		"records on the Lease":               {false, "x", recorded, 0},
		"a strategy for LeaseCandidates":     {true, "x", strategy, 0},
	} {
		b := newBench(t, func(r *Rules) { r.Coordinated = tc.coordinated })
		b.see(leaseOf(tc.holder, 1, tc.mark))
		b.see(leaseOf(tc.holder, 2, tc.mark, atVersion("2")))
		told := 0
		for _, e := range b.told {
			if _, ok := e.(MixedRegistries); ok {
				told++
			}
		}
		if told != tc.want {
			t.Errorf("%s: reported %d times, want %d", name, told, tc.want)
		}
	}
}

// A LeaseCandidate exists while its candidate wants to lead and would see an assignment.
func TestWhenTheLeaseCandidateShouldExist(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*bench)
		want   bool
	}{
		"the Lease was seen":      {func(b *bench) { b.see(leaseOf("x", 1)) }, true},
		"nothing was seen":        {func(*bench) {}, false},
		"Run ends":                {func(b *bench) { b.see(leaseOf("x", 1)); b.apply(0, Stopped{}) }, false},
		"a last resort":           {func(b *bench) { b.see(leaseOf("x", 1)); b.self.LastResort = true }, false},
		"it stands back":          {func(b *bench) { b.see(leaseOf("x", 1)); b.standBackTo = 1 }, false},
		"it does no longer":       {func(b *bench) { b.see(leaseOf("x", 1)); b.standBackTo, b.now = 1, 1 }, true},
		"its creation is watched": {func(b *bench) { b.expect(0, Read); b.apply(0, WatchBegan{}); b.answer(Read, nil, errNotFound) }, true},
	} {
		b := newBench(t, func(r *Rules) { r.Coordinated = true })
		tc.change(b)
		if got := b.Candidacy(b.now); got.present != tc.want || got.Stopping() != b.stopping {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A Lease that can't be watched is read every RenewInterval; one of which the watch is
// only down, or that an observer reads, about once in two LeaseDurations.
func TestTheIntervalOfReads(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	if got := b.readAt; got != 30*time.Second {
		t.Errorf("read again at %v", got)
	}
	b.apply(0, WatchLost{})
	b.nothingUntil(125*time.Millisecond, Publish)
	b.answer(Publish, store(b.recordLease(b.instant()), "2"), nil)
	b.nothingUntil(3*time.Second, Read)
	b.answer(Read, leaseOf("x", 2, atVersion("3")), nil)
	if got := b.readAt; got != 6*time.Second {
		t.Errorf("read again at %v while the watch is refused", got)
	}
}

// A term does not inherit the doubts of an earlier one.
func TestATermBeginsWithoutDoubts(t *testing.T) {
	b := newBench(t)
	b.reg.doubts["y"] = doubt{n: 1}
	b.lead()
	if len(b.reg.doubts) > 0 {
		t.Errorf("doubts: %v", b.reg.doubts)
	}
}

// A released Lease has no mark, so an edit that names this process later does not look
// like its term.
func TestAReleaseLeavesNoMark(t *testing.T) {
	b := newBench(t)
	b.lead()
	l := b.handedLease(b.instant(), "")
	for _, key := range []string{termAnnotation, handoverAnnotation, offerAnnotation} {
		if value, there := l.Annotations[key]; there {
			t.Errorf("%s is %q", key, value)
		}
	}
	if l = b.handedLease(b.instant(), "y"); !isMarked(l) || l.Annotations[handoverAnnotation] != "me" {
		t.Errorf("the hand-over has %v", l.Annotations)
	}
}

// A leader reads a Lease of which it may have missed a state. A read that failed at once is
// repeated after a wait.
func TestALeaderRepeatsAReadAfterAWait(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: 187500 * time.Microsecond, minCall: 0} {
		b := newBench(t)
		b.lead()
		b.apply(time.Second, WatchLost{Gone: true})
		b.expect(time.Second, Read)
		sent := b.instant()
		b.now += took
		b.answerTo(sent, Read, nil, errServer)
		if got := b.retryAt - b.now; got != want {
			t.Errorf("repeated %v after a failure that took %v, want %v", got, took, want)
		}
	}
}

// A leader that renews every three seconds shows itself to be alive every ten minutes.
func TestTheBeatOfALeaderGrowsEveryTenMinutes(t *testing.T) {
	b := newBench(t)
	b.lead()
	last, changed := b.reg.records["me"].Beat, b.now
	for range 3 {
		for b.reg.records["me"].Beat == last {
			b.renewFor(time.Second, func(*coordinationv1.Lease) {})
		}
		beat := b.reg.records["me"].Beat
		if gap := b.now - changed; beat != last+1 || gap < recordInterval || gap > recordInterval+6*time.Second {
			t.Errorf("beat %d follows %d after %v", beat, last, gap)
		}
		last, changed = beat, b.now
	}
}

// The end of a term ends its offer. Nobody has accepted it.
func TestTheEndOfATermEndsTheOffer(t *testing.T) {
	for name, end := range map[string]func(*bench){
		"the lease is lost": func(b *bench) { b.see(leaseOf("x", 2, atVersion("20"))) },
		"the work returns":  func(b *bench) { b.apply(b.now, WorkReturned{}) },
	} {
		b := newBench(t)
		b.lead()
		b.now = 4 * time.Second
		b.reg.offer = &pendingOffer{to: "better", id: "0.2", stored: true, since: time.Second}
		end(b)
		if e, told := effect[OfferEnded](b); !told || e.Accepted || e.To != "better" || e.Elapsed != 3*time.Second || b.reg.offer != nil {
			t.Errorf("%s: %+v, reported: %v", name, e, told)
		}
	}
}

// A term lasts until its work is cancelled, and the time that the work needs then is that of
// the drain.
func TestTheDurationOfATerm(t *testing.T) {
	for name, tc := range map[string]struct {
		resigned          bool
		duration, drained time.Duration
	}{"the work returns": {false, 7 * time.Second, 0}, "it is cancelled": {true, 4 * time.Second, 3 * time.Second}} {
		b := newBench(t)
		b.now = time.Second
		b.expect(b.now, Read)
		b.answer(Read, nil, errNotFound)
		b.answer(Claim, store(b.expect(b.now, Claim).Object, "10"), nil)
		if tc.resigned {
			b.apply(5*time.Second, Resigned{})
		}
		b.apply(8*time.Second, WorkReturned{})
		if e, _ := effect[TermEnded](b); e.Duration != tc.duration || e.Drained != tc.drained {
			t.Errorf("%s: %v, drained for %v", name, e.Duration, e.Drained)
		}
	}
}

// Each vacancy has its own draw, so that two candidates do not meet in all of them.
func TestEachVacancyHasItsOwnDraw(t *testing.T) {
	b := newBench(t)
	b.see(leaseOf("x", 1))
	b.Random = func() float64 { return 0.25 }
	if b.see(leaseOf("x", 1, atVersion("2"))); b.draw != 0.5 {
		t.Errorf("draws %v although nothing has changed", b.draw)
	}
	if b.see(leaseOf("", 2, released, atVersion("3"))); b.draw != 0.25 {
		t.Errorf("draws %v", b.draw)
	}
}

// An event out of turn is reported once, and changes nothing.
func TestARefusedEventIsReportedOnce(t *testing.T) {
	b := newBench(t)
	for range 2 {
		b.told = append(b.told, b.Apply(b.instant(), WorkReturned{})...)
	}
	if len(b.told) != 1 || b.phase != Standby || b.Machine.Check() == nil {
		t.Errorf("%v after %+v: %v", b.phase, b.told, b.Machine.Check())
	}
}

// A request may not outlast ShutdownTimeout.
func TestRequestsEndWithRun(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.apply(time.Second, WorkReturned{})
	if s := b.expect(3*time.Second, HandOver); s.Timeout != shutdownTimeout-2*time.Second {
		t.Errorf("the hand-over has %v", s.Timeout)
	}
}

// A candidate with the registry of LeaseCandidates removes the record of an earlier process.
func TestARecordOfAnEarlierProcessIsRemoved(t *testing.T) {
	b := newBench(t, func(r *Rules) { r.Coordinated = true })
	l := leaseOf("", 1, func(l *coordinationv1.Lease) { l.Annotations = map[string]string{recordKey("me"): "{}", "other": ""} })
	if b.registry.write(0, Publish, l); len(l.Annotations) != 1 {
		t.Errorf("%v", l.Annotations)
	}
}

// A candidate does not compete with its own record.
func TestACandidateIsNotAmongTheOthers(t *testing.T) {
	b := newBench(t)
	strategy := b.Strategy.Name()
	b.reg.records = map[string]record{}
	for _, id := range []string{"me", "a", "b"} {
		b.reg.records[id] = record{Peer: spec.Peer{Identity: id}, Strategy: strategy}
	}
	for except, want := range map[string][]string{"": {"a", "b"}, "a": {"b"}, "me": {"a", "b"}} {
		peers, _, _ := b.reg.others(except)
		var ids []string
		for _, p := range peers {
			ids = append(ids, p.Identity)
		}
		if slices.Sort(ids); !slices.Equal(ids, want) {
			t.Errorf("others than %q: %v, want %v", except, ids, want)
		}
	}
}

// Whom a coordinator prefers is better if its LeaseCandidate says so, is for this Lease, and
// stays.
func TestTheVerdictAboutAPreferredCandidate(t *testing.T) {
	deleted := metav1.Unix(1, 0)
	for name, tc := range map[string]struct {
		change     func(*coordinationv1beta1.LeaseCandidate)
		lastResort bool
		want       bool
	}{
		"a better one":         {func(*coordinationv1beta1.LeaseCandidate) {}, false, true},
		"it is being deleted":  {func(lc *coordinationv1beta1.LeaseCandidate) { lc.DeletionTimestamp = &deleted }, false, false},
		"of another Lease":     {func(lc *coordinationv1beta1.LeaseCandidate) { lc.Spec.LeaseName = "other" }, false, false},
		"an equal":             {func(lc *coordinationv1beta1.LeaseCandidate) { lc.Annotations = nil }, false, false},
		"an equal of the last": {func(lc *coordinationv1beta1.LeaseCandidate) { lc.Annotations = nil }, true, true},
	} {
		b := newBench(t, func(r *Rules) { r.Coordinated = true })
		b.self.LastResort = tc.lastResort
		lc := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: "y", Annotations: map[string]string{spec.PeerAnnotation: `{"priority":5}`}}}
		lc.Spec.LeaseName = b.Lease.Name
		tc.change(lc)
		b.apply(0, Inquired{Name: "y", Candidate: lc})
		if v := b.registry.(*coordinated).verdicts["y"]; v.better != tc.want || v.until != verdictFor {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// The status is about the observed Lease, and about the term.
func TestStatus(t *testing.T) {
	b := newBench(t)
	if got := b.Status(); got != (Status{}) {
		t.Errorf("%+v before the Lease was read", got)
	}
	b.lead()
	want := Status{Phase: Leading, Holder: "me", UID: "u1", Exists: true, Until: renewDeadline}
	if got := b.Status(); got != want {
		t.Errorf("%+v of a leader, want %+v", got, want)
	}
	b.apply(time.Second, Resigned{})
	want.Phase, want.Cause, want.CancelledAt = Draining, Resigning, time.Second
	if got := b.Status(); got != want {
		t.Errorf("%+v while the work drains, want %+v", got, want)
	}
	b.now = 2 * time.Second
	b.see(leaseOf("x", 1, atVersion("20")))
	want = Status{Phase: Ended, Holder: "x", UID: b.lease.UID, Exists: true, Until: 17 * time.Second, Cause: Resigning, CancelledAt: time.Second}
	if got := b.Status(); got != want {
		t.Errorf("%+v after the lease was lost, want %+v", got, want)
	}
}

// A leader offers the lease only if all candidates of the highest version want the strategy
// by which the other one is better. Its own record has its identity and its age.
func TestALeaderOffersByACommonStrategy(t *testing.T) {
	for name, tc := range map[string]struct {
		version, strategy string
		want              bool
	}{
		"the same":                     {"", byPriority{}.Name(), true},
		"another":                      {"", "z.example.com/other", false},
		"another of a higher version":  {"9.0.0", "z.example.com/other", false},
		"the same of a higher version": {"9.0.0", byPriority{}.Name(), true},
	} {
		b := newBench(t)
		b.lead()
		if me := b.reg.records["me"]; me.Identity != "me" || !me.Created.Equal(b.created) || b.created.IsZero() {
			t.Errorf("the record is %+v", me)
		}
		b.put("20", record{Peer: spec.Peer{Identity: "better", Priority: 5, BinaryVersion: tc.version}, Strategy: tc.strategy})
		b.renewFor(minTenure+time.Second, func(*coordinationv1.Lease) {})
		if offered := b.reg.offer != nil; offered != tc.want {
			t.Errorf("%s: offered: %v", name, offered)
		}
	}
}

// Only a claim, a renewal and a release show that a leader was alive. An edit does not, and
// with LeaseCandidates an assignment does not either.
func TestWhatShowsThatALeaderWasAlive(t *testing.T) {
	for name, tc := range map[string]struct {
		coordinated bool
		after       *coordinationv1.Lease
		want        bool
	}{
		"a renewal":                            {false, leaseOf("x", 2, atVersion("2")), true},
		"a claim of another library":           {false, leaseOf("y", 2, atVersion("2")), true},
		"a release":                            {false, leaseOf("", 2, atVersion("2"), released), true},
		"an edit of the holder":                {false, leaseOf("y", 1, atVersion("2")), false},
		"a claim, with LeaseCandidates":        {true, leaseOf("y", 2, atVersion("2"), marked), true},
		"an assignment, with LeaseCandidates":  {true, leaseOf("y", 2, atVersion("2")), false},
		"a deletion":                           {false, nil, false},
		"a lease that was emptied, not given":  {false, leaseOf("", 2, atVersion("2")), false},
		"a claim of ours, seen before its end": {false, leaseOf("me", 2, atVersion("2")), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(r *Rules) { r.Coordinated = tc.coordinated })
			b.see(leaseOf("x", 1))
			b.led = -1
			b.now = time.Second
			b.see(tc.after)
			if got := b.led >= 0; got != tc.want {
				t.Errorf("it shows that a leader was alive: %v", got)
			}
		})
	}
}
