// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

func seconds(n int32) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To(n) }
}

func TestAShorterDurationDoesNotShortenAnEarlierPromise(t *testing.T) {
	s := sighting{me: "me", def: 15 * time.Second}
	s.see(0, leaseOf("x", 1, seconds(60)), inOrder)
	s.see(time.Second, leaseOf("x", 1, seconds(5)), inOrder)
	s.see(2*time.Second, leaseOf("x", 2, seconds(5)), inOrder)
	if got, want := s.freeAt(), 62*time.Second; got != want {
		t.Errorf("free at %v, want %v", got, want)
	}
	again := func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](9) }
	s.see(3*time.Second, leaseOf("x", 3, seconds(60)), inOrder)
	s.see(4*time.Second, leaseOf("x", 3, seconds(5), again), inOrder)
	if got, want := s.freeAt(), 64*time.Second; got != want {
		t.Errorf("free at %v after another number of transitions, want %v", got, want)
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

// A candidate that can't watch reads the Lease when its holder seems silent,
// because it may have been renewed since the last read.
func TestAPollerReadsBeforeItClaims(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	held := leaseOf("x", 1)
	b.answer(Read, held, nil)
	b.lost(0, false)
	for b.now < 14*time.Second {
		s := b.next()
		switch s.Op {
		case "":
			b.now = min(s.Wake, 14*time.Second)
		case Read:
			b.answer(Read, held, nil)
		default:
			b.answer(s.Op, nil, errServer)
		}
	}
	b.readAt = 15*time.Second + 1 // the poll comes after the lease
	b.reg.own.retryAt = time.Hour
	if s := b.at(15 * time.Second); s.Op != "" {
		t.Fatalf("%s of a lease that was read %v ago", s.Op, b.now-b.lastRead)
	}
	b.expect(15*time.Second+1, Read)
	b.answer(Read, leaseOf("x", 2), nil) // it was renewed
	if s := b.at(16 * time.Second); s.Op == Claim {
		t.Error("claims a lease that was renewed")
	}
}

// The chosen successor may have died. After the time of the lease it is released.
func TestAHandOverThatTookTooLongIsARelease(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.reg.records["next"] = record{Peer: spec.Peer{Identity: "next"}}
	b.term.target = "next"
	b.becomeDraining(time.Second, Superseded)
	b.now = 2 * time.Second
	b.apply(b.now, WorkReturned{})
	s := b.expect(b.now, HandOver)
	if holder := spec.HolderOf(s.Object); holder != "next" {
		t.Fatalf("handed to %q", holder)
	}
	b.answer(HandOver, nil, errConflict)
	b.sure, b.retryAt = certain, 0
	s = b.expect(10*time.Second, HandOver)
	if holder := spec.HolderOf(s.Object); holder != "" {
		t.Errorf("handed to %q after the lease had run out", holder)
	}
}

// The lease was assigned over a leader that may still lead, and this candidate ends.
func TestALeaseIsNotReleasedWhileAnEarlierHolderMayLead(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	b.reg.own.retryAt = time.Hour
	b.see(leaseOf("me", 2, atVersion("2")))
	b.apply(time.Second, Stopped{})
	if s := b.at(time.Second); s.Op == HandOver {
		t.Error("released before the earlier holder has stopped")
	}
}

func TestADoubtedCandidateGetsNoOfferUntilItsTimeIsOver(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.reg.records = map[string]record{"better": {Peer: spec.Peer{Identity: "better", Priority: 5}, Strategy: b.Strategy.Name()}}
	b.reg.doubts["better"] = doubt{n: 1, since: time.Minute}
	b.alarm = alarm{90*time.Second + time.Hour}
	if b.reg.weigh(90 * time.Second); b.Machine.alarm.at != 2*time.Minute || b.reg.offer != nil {
		t.Fatalf("compares again at %v, offer %v", b.Machine.alarm.at, b.reg.offer)
	}
	if b.reg.weigh(2 * time.Minute); b.reg.offer == nil {
		t.Error("no offer after that")
	}
}

func TestTheAcknowledgmentOfAnEarlierOfferDoesNotCount(t *testing.T) {
	b := newBench(t)
	b.lead()
	offer := &pendingOffer{to: "better", id: "0.2", stored: true, until: 35 * time.Second}
	b.reg.offer = offer
	b.reg.records = map[string]record{"better": {Peer: spec.Peer{Identity: "better"}, Ack: "0.1"}}
	b.alarm = alarm{31*time.Second + time.Hour}
	if b.reg.awaitAck(31*time.Second, offer); b.Machine.alarm.at != offer.until || b.phase != Leading {
		t.Fatalf("%v, compares again at %v", b.phase, b.Machine.alarm.at)
	}
	b.reg.records["better"] = record{Peer: spec.Peer{Identity: "better"}, Ack: "0.2"}
	if b.reg.awaitAck(31*time.Second, offer); b.phase != Draining {
		t.Errorf("%v after the acknowledgment", b.phase)
	}
}

func TestAnOfferThatIsNotStoredYetEndsIfItsCandidateWithdraws(t *testing.T) {
	b := newBench(t)
	b.lead()
	offer := &pendingOffer{to: "better", id: "0.2"}
	b.reg.offer = offer
	b.reg.records = map[string]record{"better": {Peer: spec.Peer{Identity: "better"}}}
	if b.reg.weigh(31 * time.Second); b.reg.offer != offer || len(b.reg.doubts) > 0 {
		t.Fatalf("an offer that the candidate has not seen ended; doubts: %v", b.reg.doubts)
	}
	clear(b.reg.records)
	b.reg.weigh(31 * time.Second)
	if _, told := effect[OfferEnded](b); b.reg.offer != nil || told {
		t.Errorf("the offer is %+v; reported: %v", b.reg.offer, told)
	}
}

func TestAReleaseEndsTheRequestAboutARecord(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	b.nothingUntil(125*time.Millisecond, Publish)
	if s := b.next(); s.Abort {
		t.Fatal("aborted while the lease is held")
	}
	b.see(leaseOf("", 2, released, atVersion("2")))
	if s := b.next(); !s.Abort {
		t.Error("the request goes on although the lease can be claimed")
	}
}

// Run ends while the work of a lost term still runs. The lease is another candidate's.
func TestALeaseThatWasLostIsNotGivenAway(t *testing.T) {
	b := newBench(t)
	b.lead()
	taken := leaseOf("x", 2, atVersion("20"))
	b.see(taken)
	if b.phase != Ended {
		t.Fatal(b.phase)
	}
	b.apply(0, Stopped{})
	b.apply(b.now, WorkReturned{})
	for range 5 {
		switch s := b.next(); s.Op {
		case Read:
			b.answer(Read, taken, nil)
		case HandOver:
			t.Fatal("gives away the lease of another candidate")
		}
	}
	if b.phase != Finished {
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
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	b.reg.own.retryAt = time.Hour
	b.nothingUntil(15*time.Second, Claim)
	b.answer(Claim, nil, errConflict)
	b.nothingUntil(b.now, Read)
	b.answer(Read, leaseOf("x", 14, atVersion("2")), nil)
	if b.stream == 0 {
		t.Error("the watch goes on")
	}
}

func TestAClaimThatIsAnsweredAtItsDeadlineBeginsNoTerm(t *testing.T) {
	for took, want := range map[time.Duration]Phase{renewDeadline - 1: Leading, renewDeadline: Standby} {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, nil, errNotFound)
		s := b.expect(0, Claim)
		sent := b.instant()
		b.now = took
		b.answerTo(sent, Claim, store(s.Object, "10"), nil)
		if b.phase != want {
			t.Errorf("%v after %v", b.phase, took)
		}
	}
}

func TestAClaimDropsTheRecordOfASilentHolder(t *testing.T) {
	b := newBench(t)
	b.see(leaseOf("x", 1, func(l *coordinationv1.Lease) {
		l.Annotations = map[string]string{recordKey("x"): record{Peer: spec.Peer{Identity: "x", Priority: -1}}.encode(), recordKey("y"): record{Peer: spec.Peer{Identity: "y", Priority: -1}}.encode()}
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
		r := record{Peer: spec.Peer{Identity: "x"}, Since: since}
		b.reg.records = map[string]record{"x": r}
		b.lease.Annotations[recordKey("x")] = r.encode()
		b.reg.doubts["x"] = doubt{n: 1, since: 2 * time.Second}
		if _, there := records(b.renewedLease(b.instant()).Annotations)["x"]; there != keeps {
			t.Errorf("record of %v, doubt of 2 s: kept %v", since, there)
		}
	}
}

func TestAnObjectIsPolledAfterSixLostWatchesAndForTenMinutes(t *testing.T) {
	f := follower{poll: 3 * time.Second}
	for i, want := range []string{"7", "7", "", "", "", "polled"} {
		f.lost(0, true)
		got := f.from("7")
		if f.polling {
			got = "polled"
		}
		if got != want {
			t.Errorf("after %d lost watches: %q, want %q", i+1, got, want)
		}
	}
	if f.tick(pollFor - 1); !f.polling {
		t.Error("polling ended early")
	}
	if f.tick(pollFor); f.polling {
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
			r := record{Peer: spec.Peer{Identity: string(rune('a' + i)), Created: b.created.Add(time.Hour)}, Strategy: b.Strategy.Name()}
			l.Annotations[recordKey(r.Identity)] = r.encode()
		}
	}))
	if got, want := b.claimAt(), 2250*time.Millisecond; got != want {
		t.Errorf("claims at %v, want %v", got, want)
	}
}

func TestTheEndOfTheTermCancelsARenewal(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.nothingUntil(3*time.Second, Renew)
	if s := b.at(renewDeadline - 1); s.Abort {
		t.Fatal("aborted while the term goes on")
	}
	if s := b.at(renewDeadline); !s.Abort {
		t.Error("the renewal goes on after the term")
	}
}

func TestTheEndOfRunCancelsARead(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	if s := b.next(); s.Abort {
		t.Fatal("aborted while Run goes on")
	}
	b.apply(0, Stopped{})
	if s := b.next(); !s.Abort {
		t.Error("the read goes on")
	}
}

// After a write whose result is not known, only a read shows whether there is something
// to withdraw or to release.
func TestTheEndOfRunWaitsForAReadThatItNeeds(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, nil, errNotFound)
	b.expect(0, Claim)
	b.answer(Claim, nil, errServer)
	b.nothingUntil(b.retryAt, Read)
	b.apply(b.now, Stopped{})
	if s := b.next(); s.Abort {
		t.Error("the read was aborted at once")
	}
	if s := b.at(b.stopBy); !s.Abort {
		t.Error("the read goes on after ShutdownTimeout")
	}
}

// The work of a lost term still runs. A read that was cancelled would be due again at
// once.
func TestTheEndOfRunCancelsNoReadBeforeTheWorkHasReturned(t *testing.T) {
	b := newBench(t)
	b.lead()
	b.lost(0, false) // so the Lease is polled
	b.becomeEnded(0, Lost)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1, atVersion("11")), nil)
	b.nothingUntil(b.readAt, Read)
	b.apply(b.now, Stopped{})
	if s := b.next(); s.Abort {
		t.Error("the read was aborted")
	}
}

func TestACandidateWakesWhenItNoLongerStandsBack(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	b.answer(Read, leaseOf("x", 1), nil)
	b.standBackTo = 5 * time.Second
	if s := b.at(0); s.Op != "" || s.Wake != 5*time.Second {
		t.Errorf("%q, wakes at %v", s.Op, s.Wake)
	}
}

func TestALeaderWakesAtItsDeadlineWhileARenewalIsUnderWay(t *testing.T) {
	b := newBench(t)
	b.lead()
	if s := b.nothingUntil(3*time.Second, Renew); s.Wake != 10*time.Second {
		t.Errorf("wakes at %v", s.Wake)
	}
}

func TestALeaderLeavesTimeForAnotherTry(t *testing.T) {
	b := newBench(t)
	b.lead()
	if got, want := b.delay(9600*time.Millisecond, 9, 0), 200*time.Millisecond; got != want {
		t.Errorf("waits %v of 400 ms, want %v", got, want)
	}
	if got := b.delay(9990*time.Millisecond, 9, 0); got != minRetry {
		t.Errorf("waits %v of 10 ms", got)
	}
}

// A webhook restores the record.
func TestAWithdrawalWithoutEffectIsNotRepeatedAtOnce(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	stored := leaseOf("x", 1, func(l *coordinationv1.Lease) {
		l.Annotations = map[string]string{recordKey("me"): record{Peer: spec.Peer{Identity: "me"}}.encode()}
	})
	b.answer(Read, stored, nil)
	b.apply(0, Stopped{})
	b.expect(0, Withdraw)
	b.answer(Withdraw, stored, nil)
	if s := b.at(0); s.Op != "" || s.Wake > shutdownTimeout {
		t.Errorf("%q, wakes at %v", s.Op, s.Wake)
	}
	if b.at(shutdownTimeout); b.phase != Finished {
		t.Error(b.phase)
	}
}

func TestTheTurnOfACandidateDependsOnItsRank(t *testing.T) {
	for name, tc := range map[string]struct {
		better int
		change func(*bench)
		want   time.Duration
	}{
		"the best":             {0, nil, 0},
		"the third":            {2, nil, 2 * Stagger},
		"the last with a turn": {MaxRank - 1, nil, (MaxRank - 1) * Stagger},
		"one of the others":    {MaxRank, nil, MaxRank*Stagger - Stagger/2},
		"another strategy": {0, func(b *bench) {
			b.reg.records["worse"] = record{Peer: spec.Peer{Identity: "worse", BinaryVersion: "1.0.0", Priority: -1}, Strategy: "x/y"}
		}, MaxRank*Stagger - Stagger/2},
		"not ready":              {0, func(b *bench) { b.self.LastResort = true }, MaxRank*Stagger - Stagger/2},
		"stands back":            {0, func(b *bench) { b.standBackTo = b.pulseAt + 1 }, MaxRank*Stagger - Stagger/2},
		"stood back in the past": {0, func(b *bench) { b.standBackTo = b.pulseAt }, 0},
	} {
		b := newBench(t)
		b.expect(0, Read)
		b.answer(Read, leaseOf("x", 1), nil)
		for i := range tc.better {
			id := strings.Repeat("b", i+1)
			b.reg.records[id] = record{Peer: spec.Peer{Identity: id, Priority: 1}, Strategy: b.Strategy.Name()}
		}
		if tc.change != nil {
			tc.change(b)
		}
		if got := b.reg.turn(); got != tc.want {
			t.Errorf("%s: waits %v, want %v", name, got, tc.want)
		}
	}
}

// A webhook drops each record.
func TestARecordWithoutEffectIsNotRepeatedAtOnce(t *testing.T) {
	b := newBench(t)
	b.expect(0, Read)
	held := leaseOf("x", 1, seconds(60))
	b.answer(Read, held, nil)
	b.nothingUntil(125*time.Millisecond, Publish)
	b.answer(Publish, held, nil)
	b.nothingUntil(125*time.Millisecond+changeGap, Publish)
	b.answer(Publish, store(b.recordLease(b.instant()), "2"), nil)
	if b.reg.own.retryAt != 0 {
		t.Errorf("waits until %v after the record was stored", b.reg.own.retryAt)
	}
}
