// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// Each test here checks one guard that no other test needs.

func seconds(n int32) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To(n) }
}

func TestAShorterDurationDoesNotShortenAnEarlierPromise(t *testing.T) {
	s := sighting{me: "me", def: 15 * time.Second}
	s.see(0, leaseOf("x", 1, seconds(60)), inOrder)
	s.see(time.Second, leaseOf("x", 1, seconds(5)), inOrder)
	s.see(2*time.Second, leaseOf("x", 2, seconds(5)), inOrder)
	if got, want := s.freeAt(), 61*time.Second; got != want {
		t.Errorf("free at %v, want %v", got, want)
	}
}

func TestAnEarlierHolderIsWaitedForWhileAnotherHolds(t *testing.T) {
	s := sighting{me: "me", def: 15 * time.Second}
	s.see(0, leaseOf("x", 1, seconds(60)), inOrder)
	s.see(time.Second, leaseOf("y", 2), inOrder)
	if got, want := s.freeAt(), time.Minute; got != want {
		t.Errorf("free at %v, want %v", got, want)
	}
}

func TestATermEndsExactlyAtItsDeadline(t *testing.T) {
	tm := &term{deadline: 10}
	if tm.expire(9) || !tm.extend(9, instant{}, 20) {
		t.Error("expired before its deadline")
	}
	if !tm.expire(20) {
		t.Error("not expired at its deadline")
	}
	if tm.extend(19, instant{}, 30) || tm.until() != 20 {
		t.Error("extended after it expired")
	}
	tm = &term{deadline: 10}
	if tm.extend(10, instant{}, 20) {
		t.Error("extended at its deadline")
	}
}

// RenewDeadline leaves time for a second renewal, or the Timing is invalid.
func TestARenewalAndACallMustFitIntoRenewDeadline(t *testing.T) {
	timing := Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 11 * time.Second, RenewInterval: 8 * time.Second}
	if err := timing.Validate(); err == nil || !strings.Contains(err.Error(), "RenewInterval") {
		t.Errorf("8.8 s + 2.2 s in 11 s: %v", err)
	}
	timing.RenewInterval -= 10 * time.Nanosecond
	if err := timing.Validate(); err != nil {
		t.Error(err)
	}
	cfg := validConfig()
	cfg.Timing = Timing{LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RenewInterval: time.Second, Drain: 500 * time.Millisecond}
	cfg.CallTimeout = 1900 * time.Millisecond
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "CallTimeout") {
		t.Errorf("1.1 s + 1.9 s in 3 s: %v", err)
	}
	cfg.CallTimeout--
	if _, err := New(cfg); err != nil {
		t.Error(err)
	}
}

// A candidate that can't watch reads the Lease when its holder seems silent,
// because it may have been renewed since the last read.
func TestAPollerReadsBeforeItClaims(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	held := leaseOf("x", 1)
	b.answer(OpRead, held, nil)
	b.lost(0, false)
	for b.now < 14*time.Second {
		s := b.next(b.instant())
		switch s.op {
		case "":
			b.now = min(s.wake, 14*time.Second)
		case OpRead:
			b.answer(OpRead, held, nil)
		default:
			b.answer(s.op, nil, errServer)
		}
	}
	b.readAt = 15*time.Second + 1 // the poll comes after the lease
	b.published.retryAt = time.Hour
	if s := b.at(15 * time.Second); s.op != "" {
		t.Fatalf("%s of a lease that was read %v ago", s.op, b.now-b.lastRead)
	}
	b.expect(15*time.Second+1, OpRead)
	b.answer(OpRead, leaseOf("x", 2), nil) // it was renewed
	if s := b.at(16 * time.Second); s.op == OpClaim {
		t.Error("claims a lease that was renewed")
	}
}

// The chosen successor may have died. After the time of the lease it is released.
func TestAHandOverThatTookTooLongIsARelease(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.records["next"] = record{Peer: Peer{Identity: "next"}}
	b.term.target = "next"
	b.drain(time.Second, ErrSuperseded)
	b.now = 2 * time.Second
	b.finishWork(b.now)
	s := b.expect(b.now, OpHandOver)
	if holder := spec.HolderOf(s.object); holder != "next" {
		t.Fatalf("handed to %q", holder)
	}
	b.answer(OpHandOver, nil, errConflict)
	b.reread, b.retryAt = false, 0
	s = b.expect(10*time.Second, OpHandOver)
	if holder := spec.HolderOf(s.object); holder != "" {
		t.Errorf("handed to %q after the lease had run out", holder)
	}
}

// The lease was assigned over a leader that may still lead, and this candidate ends.
func TestALeaseIsNotReleasedWhileAnEarlierHolderMayLead(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	b.answer(OpRead, leaseOf("x", 1), nil)
	b.published.retryAt = time.Hour
	b.see(leaseOf("me", 2, atVersion("2")))
	b.stop(time.Second, ErrResigned)
	if s := b.at(time.Second); s.op == OpHandOver {
		t.Error("released before the earlier holder has stopped")
	}
}

func TestADoubtedCandidateGetsNoOfferUntilItsTimeIsOver(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.records = map[string]record{"better": {Peer: Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()}}
	b.doubts["better"] = doubt{n: 1, since: time.Minute}
	b.begin(90*time.Second, time.Hour)
	if b.succession(90 * time.Second); b.wakeAt != 2*time.Minute || b.term.offer != nil {
		t.Fatalf("compares again at %v, offer %v", b.wakeAt, b.term.offer)
	}
	if b.succession(2 * time.Minute); b.term.offer == nil {
		t.Error("no offer after that")
	}
}

func TestTheAcknowledgmentOfAnEarlierOfferDoesNotCount(t *testing.T) {
	b := newBench(t)
	b.lead()
	offer := &pendingOffer{to: "better", id: "0.2", stored: true, until: 35 * time.Second}
	b.term.offer = offer
	b.records = map[string]record{"better": {Peer: Peer{Identity: "better"}, Ack: "0.1"}}
	b.begin(31*time.Second, time.Hour)
	if b.awaitAck(31*time.Second, offer); b.wakeAt != offer.until || b.phase != leading {
		t.Fatalf("%v, compares again at %v", b.phase, b.wakeAt)
	}
	b.records["better"] = record{Peer: Peer{Identity: "better"}, Ack: "0.2"}
	if b.awaitAck(31*time.Second, offer); b.phase != draining {
		t.Errorf("%v after the acknowledgment", b.phase)
	}
}

func TestAnOfferThatIsNotStoredYetEndsIfItsCandidateWithdraws(t *testing.T) {
	b := newBench(t)
	b.lead()
	offer := &pendingOffer{to: "better", id: "0.2"}
	b.term.offer = offer
	b.records = map[string]record{"better": {Peer: Peer{Identity: "better"}}}
	if b.succession(31 * time.Second); b.term.offer != offer || len(b.doubts) > 0 {
		t.Fatalf("an offer that the candidate has not seen ended; doubts: %v", b.doubts)
	}
	clear(b.records)
	b.succession(31 * time.Second)
	if _, told := effect[OfferEnded](b); b.term.offer != nil || told {
		t.Errorf("the offer is %+v; reported: %v", b.term.offer, told)
	}
}

func TestAReleaseEndsTheRequestAboutARecord(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	b.answer(OpRead, leaseOf("x", 1), nil)
	b.nothingUntil(125*time.Millisecond, OpPublish)
	if s := b.next(b.instant()); s.abort {
		t.Fatal("aborted while the lease is held")
	}
	b.see(leaseOf("", 2, released, atVersion("2")))
	if s := b.next(b.instant()); !s.abort {
		t.Error("the request goes on although the lease can be claimed")
	}
}

// Run ends while the work of a lost term still runs. The lease is another candidate's.
func TestALeaseThatWasLostIsNotGivenAway(t *testing.T) {
	b := newBench(t)
	b.lead()
	taken := leaseOf("x", 2, atVersion("20"))
	b.see(taken)
	if b.phase != ended {
		t.Fatal(b.phase)
	}
	b.stop(0, ErrResigned)
	b.finishWork(b.now)
	for range 5 {
		switch s := b.next(b.instant()); s.op {
		case OpRead:
			b.answer(OpRead, taken, nil)
		case OpHandOver:
			t.Fatal("gives away the lease of another candidate")
		}
	}
	if b.phase != finished {
		t.Error(b.phase)
	}
}

func TestHolderGoneIsAboutTheWholeIdentity(t *testing.T) {
	for holder, free := range map[string]time.Duration{
		"a": time.Second, "a_0123abcd": time.Second, "a_b_0123abcd": 15 * time.Second, "ba_0123abcd": 15 * time.Second, "a_0123abc": 15 * time.Second,
	} {
		b := newBench(t)
		b.see(leaseOf(holder, 1))
		b.holderGone(time.Second, "a")
		if got := b.freeAt(); got != free {
			t.Errorf("%s: free at %v, want %v", holder, got, free)
		}
	}
}

// The watch delivered nothing, and a read shows that the holder renews.
func TestAWatchThatMissedARenewalIsStale(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	b.answer(OpRead, leaseOf("x", 1), nil)
	b.published.retryAt = time.Hour
	b.nothingUntil(15*time.Second, OpClaim)
	b.answer(OpClaim, nil, errConflict)
	b.nothingUntil(b.now, OpRead)
	b.answer(OpRead, leaseOf("x", 14, atVersion("2")), nil)
	if !b.watchStale {
		t.Error("the watch goes on")
	}
}

func TestAClaimThatIsAnsweredAtItsDeadlineBeginsNoTerm(t *testing.T) {
	for took, want := range map[time.Duration]phase{DefaultRenewDeadline - 1: leading, DefaultRenewDeadline: standby} {
		b := newBench(t)
		b.expect(0, OpRead)
		b.answer(OpRead, nil, errNotFound)
		s := b.expect(0, OpClaim)
		sent := b.instant()
		b.now = took
		b.writeDone(b.instant(), sent, OpClaim, store(s.object, "10"), nil)
		if b.phase != want {
			t.Errorf("%v after %v", b.phase, took)
		}
	}
}

func TestAClaimDropsTheRecordOfASilentHolder(t *testing.T) {
	b := newBench(t)
	b.see(leaseOf("x", 1, func(l *coordinationv1.Lease) {
		l.Annotations = map[string]string{recordKey("x"): record{Peer: Peer{Identity: "x", Priority: -1}}.encode(), recordKey("y"): record{Peer: Peer{Identity: "y", Priority: -1}}.encode()}
	}))
	found := records(b.claimedLease(b.instant()).Annotations)
	if _, there := found["x"]; there {
		t.Error("the record of the silent holder is still there")
	}
	if _, there := found["y"]; !there {
		t.Error("the record of another candidate was dropped")
	}
}

func TestARenewalDropsARecordOnlyIfItIsOlderThanTheDoubt(t *testing.T) {
	for since, keeps := range map[time.Duration]bool{time.Second: false, 2 * time.Second: false, 2*time.Second + 1: true} {
		b := newBench(t)
		b.lead()
		r := record{Peer: Peer{Identity: "x"}, Since: since}
		b.records = map[string]record{"x": r}
		b.lease.Annotations[recordKey("x")] = r.encode()
		b.doubts["x"] = doubt{n: 1, since: 2 * time.Second}
		if _, there := records(b.renewedLease(b.instant()).Annotations)["x"]; there != keeps {
			t.Errorf("record of %v, doubt of 2 s: kept %v", since, there)
		}
	}
}

func TestAnObjectIsPolledAfterThreeLostWatchesAndForTenMinutes(t *testing.T) {
	f := follower{poll: 3 * time.Second}
	for i, want := range []bool{false, false, true} {
		if got := f.lost(0, true); got != want {
			t.Errorf("watch %d: polled %v", i+1, got)
		}
	}
	if f.begin(pollFor-1, 0); !f.polling {
		t.Error("polling ended early")
	}
	if f.begin(pollFor, 0); f.polling {
		t.Error("still polling")
	}
}

func TestALastResortClaimsAfterAllOthers(t *testing.T) {
	b := newBench(t)
	b.see(nil)
	if got := b.claimAt(); got != 0 {
		t.Errorf("claims at %v", got)
	}
	b.self.LastResort = true
	if got, want := b.claimAt(), 2250*time.Millisecond; got != want {
		t.Errorf("claims at %v, want %v", got, want)
	}
}

// Observers do not know each other, so all of them would have the same rank.
func TestAnObserverClaimsAfterTheCandidatesWithRecords(t *testing.T) {
	b := newBench(t)
	b.see(leaseOf("", 1, released, func(l *coordinationv1.Lease) {
		l.Annotations = make(map[string]string)
		for i := range maxRecords {
			r := record{Peer: Peer{Identity: string(rune('a' + i)), Created: b.created.Add(time.Hour)}, Strategy: b.Strategy.Name()}
			l.Annotations[recordKey(r.Identity)] = r.encode()
		}
	}))
	if got, want := b.claimAt(), 2250*time.Millisecond; got != want {
		t.Errorf("claims at %v, want %v", got, want)
	}
}

func TestTheEndOfRunCancelsARead(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	if s := b.next(b.instant()); s.abort {
		t.Fatal("aborted while Run goes on")
	}
	b.stop(0, ErrResigned)
	if s := b.next(b.instant()); !s.abort {
		t.Error("the read goes on")
	}
}

// After a write whose result is not known, only a read shows whether there is something
// to withdraw or to release.
func TestTheEndOfRunWaitsForAReadThatItNeeds(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	b.answer(OpRead, nil, errNotFound)
	b.expect(0, OpClaim)
	b.answer(OpClaim, nil, errServer)
	b.nothingUntil(b.retryAt, OpRead)
	b.stop(b.now, ErrResigned)
	if s := b.next(b.instant()); s.abort {
		t.Error("the read was aborted at once")
	}
	if s := b.at(b.stopBy); !s.abort {
		t.Error("the read goes on after ShutdownTimeout")
	}
}

// The work of a lost term still runs. A read that was cancelled would be due again at
// once.
func TestTheEndOfRunCancelsNoReadBeforeTheWorkHasReturned(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.lost(0, false) // so the Lease is polled
	b.endTerm(0, ErrLost)
	b.expect(0, OpRead)
	b.answer(OpRead, leaseOf("x", 1, atVersion("11")), nil)
	b.nothingUntil(b.readAt, OpRead)
	b.stop(b.now, ErrResigned)
	if s := b.next(b.instant()); s.abort {
		t.Error("the read was aborted")
	}
}

func TestACandidateWakesWhenItNoLongerStandsBack(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	b.answer(OpRead, leaseOf("x", 1), nil)
	b.standBackTo = 5 * time.Second
	if s := b.at(0); s.op != "" || s.wake != 5*time.Second {
		t.Errorf("%q, wakes at %v", s.op, s.wake)
	}
}

func TestALeaderWakesAtItsDeadlineWhileARenewalIsUnderWay(t *testing.T) {
	b := newBench(t)
	b.lead()
	if s := b.nothingUntil(3*time.Second, OpRenew); s.wake != 10*time.Second {
		t.Errorf("wakes at %v", s.wake)
	}
}

func TestALeaderLeavesTimeForAnotherTry(t *testing.T) {
	b := newBench(t)
	b.lead()
	if got, want := b.delay(9600*time.Millisecond, 9, nil), 200*time.Millisecond; got != want {
		t.Errorf("waits %v of 400 ms, want %v", got, want)
	}
	if got := b.delay(9990*time.Millisecond, 9, nil); got != minRetry {
		t.Errorf("waits %v of 10 ms", got)
	}
}

// A webhook restores the record.
func TestAWithdrawalWithoutEffectIsNotRepeatedAtOnce(t *testing.T) {
	b := newBench(t)
	b.expect(0, OpRead)
	stored := leaseOf("x", 1, func(l *coordinationv1.Lease) {
		l.Annotations = map[string]string{recordKey("me"): record{Peer: Peer{Identity: "me"}}.encode()}
	})
	b.answer(OpRead, stored, nil)
	b.stop(0, ErrResigned)
	b.expect(0, OpWithdraw)
	b.answer(OpWithdraw, stored, nil)
	if s := b.at(0); s.op != "" || s.wake > DefaultShutdownTimeout {
		t.Errorf("%q, wakes at %v", s.op, s.wake)
	}
	if b.at(DefaultShutdownTimeout); b.phase != finished {
		t.Error(b.phase)
	}
}

func TestTheFirstConflictAboutALeaseCandidateCostsNoWait(t *testing.T) {
	u := &upkeep{setup: newBench(t).setup}
	u.done(instant{mono: time.Second}, opUpdate, nil, errConflict)
	if !u.reread || u.retryAt != time.Second {
		t.Errorf("reads again: %v, at %v", u.reread, u.retryAt)
	}
	u.done(instant{mono: time.Second}, opUpdate, nil, errConflict)
	if u.retryAt < 1100*time.Millisecond {
		t.Errorf("repeated at %v after the second conflict", u.retryAt)
	}
}

func TestAStreamContinuesWhereTheLastOneEnded(t *testing.T) {
	var reported []error
	c := &Candidate{cfg: Config{ErrorHandler: func(_ context.Context, err error, _ string) { reported = append(reported, err) }}}
	ended := func(l *lane[*coordinationv1.Lease], lived time.Duration, err error) {
		l.resume, l.pause = "1", time.Hour
		if l.sighted(0, sight[*coordinationv1.Lease]{ended: true, version: "7", opened: time.Now().Add(-lived), err: err}) {
			t.Error("the end of a stream has an object")
		}
	}
	for name, tc := range map[string]struct {
		before   int
		lived    time.Duration
		err      error
		resume   string
		broken   int
		pause    time.Duration // at least
		reread   bool
		polling  bool
		reported bool
	}{
		"after minutes":             {broken: 0, before: 3, lived: longStream + time.Second, resume: "7"},
		"soon":                      {broken: 1, lived: time.Second, resume: "7", pause: 125 * time.Millisecond},
		"soon again":                {broken: 4, before: 3, lived: time.Second, resume: "7", pause: time.Second},
		"with an error, late":       {broken: 1, lived: longStream + time.Second, err: errServer, resume: "7", pause: 125 * time.Millisecond, reported: true},
		"because the place is lost": {before: 3, err: statuserr.Gone(), reread: true},
		"because it is refused":     {before: 3, err: statuserr.Forbidden("leases", "lease", ""), polling: true, reported: true},
	} {
		reported = nil
		l := &lane[*coordinationv1.Lease]{follower: &follower{}, loop: &loop{Candidate: c, ctx: t.Context()}, broken: tc.before}
		ended(l, tc.lived, tc.err)
		if l.resume != tc.resume || l.broken != tc.broken || l.pause < tc.pause || (l.pause == 0) != (tc.pause == 0) ||
			l.reread != tc.reread || l.polling != tc.polling || (len(reported) > 0) != tc.reported {
			t.Errorf("%s: from %q after %v, %d broken, reread %v, polling %v, reported %v", name, l.resume, l.pause, l.broken, l.reread, l.polling, reported)
		}
	}
	l := &lane[*coordinationv1.Lease]{follower: &follower{gone: 2}, loop: &loop{Candidate: c, ctx: t.Context()}, broken: 3}
	if !l.sighted(0, sight[*coordinationv1.Lease]{object: leaseOf("x", 1)}) || l.broken != 0 || l.gone != 0 {
		t.Error("an observation does not show that the watch works")
	}
}

func TestTheTurnOfACandidateDependsOnItsRank(t *testing.T) {
	for name, tc := range map[string]struct {
		better int
		change func(*bench)
		want   time.Duration
	}{
		"the best":             {0, nil, 0},
		"the third":            {2, nil, 2 * stagger},
		"the last with a turn": {maxRank - 1, nil, (maxRank - 1) * stagger},
		"one of the others":    {maxRank, nil, maxRank*stagger - stagger/2},
		"another strategy": {0, func(b *bench) {
			b.records["worse"] = record{Peer: Peer{Identity: "worse", BinaryVersion: "1.0.0", Priority: -1}, Strategy: "x/y"}
		}, maxRank*stagger - stagger/2},
		"not ready":              {0, func(b *bench) { b.self.LastResort = true }, maxRank*stagger - stagger/2},
		"stands back":            {0, func(b *bench) { b.standBackTo = b.pulseAt + 1 }, maxRank*stagger - stagger/2},
		"stood back in the past": {0, func(b *bench) { b.standBackTo = b.pulseAt }, 0},
	} {
		b := newBench(t)
		b.expect(0, OpRead)
		b.answer(OpRead, leaseOf("x", 1), nil)
		for i := range tc.better {
			id := strings.Repeat("b", i+1)
			b.records[id] = record{Peer: Peer{Identity: id, Priority: 1}, Strategy: b.Strategy.Name()}
		}
		if tc.change != nil {
			tc.change(b)
		}
		if got := b.turn(); got != tc.want {
			t.Errorf("%s: waits %v, want %v", name, got, tc.want)
		}
	}
}

// watchRecorder is a client whose watches fail.
type watchRecorder struct {
	client[*coordinationv1.Lease]
	watches chan<- metav1.ListOptions
}

func (c watchRecorder) Watch(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	c.watches <- opts
	return nil, errServer
}

func TestTheNextStreamStartsAfterItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for resume, want := range map[string]string{"7": "7", "": "5"} {
			watches := make(chan metav1.ListOptions, 1)
			l := &lane[*coordinationv1.Lease]{
				follower: &follower{}, client: watchRecorder{watches: watches}, resume: resume, pause: time.Minute,
				loop: &loop{Candidate: &Candidate{clock: newClock(), cfg: Config{CallTimeout: time.Second}}, requests: t.Context()},
			}
			started := time.Now()
			l.take(move{}, true, "5")
			if opts := <-watches; opts.ResourceVersion != want || time.Since(started) != time.Minute {
				t.Errorf("watches from %q after %v, want %q", opts.ResourceVersion, time.Since(started), want)
			}
			l.stopWatch()
			l.loop.wg.Wait()
		}
	})
}
