// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
)

// note returns the inspection that the disk of a node says is under way.
func (n *node) note() string {
	data, _ := n.disk.Data(slotstore.NoteFile)
	header, rest, ok := strings.Cut(string(data), "\n")
	var length int
	if _, err := fmt.Sscanf(header, "cc1 %d", &length); !ok || err != nil {
		return ""
	}
	return rest[:length]
}

// dying makes a node on which A is proven, and whose processes die of B in Decode:
// they hang, and are killed. It returns the number of times Decode saw B.
func dying(t *testing.T) (n *node, seen *int) {
	t.Helper()
	n, seen = proven(t, "A"), new(int)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	n.kill()
	n.cfg.Codec.Decode = func(data []byte) (string, error) {
		if string(data) == "B" {
			*seen++
			if !strings.Contains(n.note(), ref("B").Digest.String()) {
				t.Error("Decode was called, and the disk does not say so")
			}
			<-release
		}
		return string(data), nil
	}
	n.start()
	return n, seen
}

// TestDeathsInDecodeAreCounted: a payload that ends the process while it is
// decoded killed the good process at every delivery, without a limit.
func TestDeathsInDecodeAreCounted(t *testing.T) { synctest.Test(t, testDeathsInDecodeAreCounted) }
func testDeathsInDecodeAreCounted(t *testing.T) {
	n, seen := dying(t)
	for range DefaultAttempts {
		n.delivers("B")
		n.kill()
		n.start()
		n.is("A", isTrue, PhaseGood, ReasonGood)
	}
	for range 5 {
		n.delivers("B")
		n.runs()
		n.is("A", isFalse, PhaseGood, ReasonCrashLoop)
		n.kill()
		n.start()
	}
	if *seen != DefaultAttempts {
		t.Errorf("it was decoded %d times, want %d", *seen, DefaultAttempts)
	}
	// Others are not affected, and Forget gives it another chance at once.
	n.delivers("C")
	n.restarts()
	n.is("C", isTrue, PhaseTrial, ReasonTrial)
	n.delivers("B")
	n.is("C", isFalse, PhaseTrial, ReasonCrashLoop)
	if err := n.c.Forget(ref("B").Digest); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if *seen != DefaultAttempts+1 {
		t.Errorf("it was decoded %d times after Forget, want %d", *seen, DefaultAttempts+1)
	}
}

// TestForgetEndsTheCountOfDeaths also in the process that has just rejected it.
func TestForgetEndsTheCountOfDeaths(t *testing.T) { synctest.Test(t, testForgetEndsTheCountOfDeaths) }
func testForgetEndsTheCountOfDeaths(t *testing.T) {
	n, seen := dying(t)
	for range DefaultAttempts {
		n.delivers("B")
		n.kill()
		n.start()
	}
	n.delivers("B")
	n.is("A", isFalse, PhaseGood, ReasonCrashLoop)
	if err := n.c.Forget(ref("B").Digest); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if *seen != DefaultAttempts+1 {
		t.Errorf("it was decoded %d times after Forget, want %d", *seen, DefaultAttempts+1)
	}
}

// TestDeathsOfTheGoodOneAreCounted: the way back to the last-known-good
// configuration goes through Decode, too.
func TestDeathsOfTheGoodOneAreCounted(t *testing.T) {
	synctest.Test(t, testDeathsOfTheGoodOneAreCounted)
}
func testDeathsOfTheGoodOneAreCounted(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	release, deadly, seen := make(chan struct{}), true, 0
	defer close(release)
	n.c.cfg.Codec.Decode = nil
	n.kill()
	n.cfg.Codec.Decode = func(data []byte) (string, error) {
		if string(data) == "A" && deadly {
			seen++
			<-release
		}
		return string(data), nil
	}
	n.cfg.Trial.Attempts = 5
	n.start()
	for range 5 {
		n.delivers("A")
		n.kill()
		n.cfg.Trial.Attempts++ // the starts of B are not the subject
		n.start()
	}
	n.c.cfg.Trial.Attempts = 5
	n.delivers("A")
	n.runs()
	if s := n.c.Status(); s.Reason != ReasonCrashLoop || seen != 5 {
		t.Errorf("decoded %d times: %+v", seen, s)
	}
}

// TestInspectionEndsWithItsResult: no later death counts against a payload that
// was decoded, whatever came of it.
func TestInspectionEndsWithItsResult(t *testing.T) {
	synctest.Test(t, testInspectionEndsWithItsResult)
}
func testInspectionEndsWithItsResult(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Admit = func(context.Context, Payload) (time.Duration, error) { return time.Hour, nil }
	n.start()
	for _, text := range []string{"bad", "B"} {
		n.delivers(text)
		if got := n.note(); got != "" {
			t.Errorf("%s: the disk says that %s is inspected", text, got)
		}
	}
	// Waiting for Admit costs the disk nothing.
	before := n.disk.Changes()
	n.goes(24 * time.Hour)
	if n.disk.Changes() != before {
		t.Errorf("%d changes of the disk in a day of waiting", n.disk.Changes()-before)
	}
}

// TestInspectionThatCanNotBeRecordedIsNotMade: it could end the process again and
// again.
func TestInspectionThatCanNotBeRecordedIsNotMade(t *testing.T) {
	synctest.Test(t, testInspectionThatCanNotBeRecordedIsNotMade)
}
func testInspectionThatCanNotBeRecordedIsNotMade(t *testing.T) {
	n := proven(t, "A")
	n.c.cfg.Codec.Decode = func(data []byte) (string, error) {
		t.Errorf("%s was decoded", data)
		return "", nil
	}
	n.disk.Break(errReadOnly)
	n.delivers("B")
	n.goes(time.Hour)
	n.is("A", isFalse, PhaseGood, ReasonStoreReadOnly)
}

// TestDecodeThatHangsIsRejected within the deadline, and hangs nothing else.
func TestDecodeThatHangsIsRejected(t *testing.T) {
	for name, hang := range map[string]func(n *node, release chan struct{}){
		"Decode": func(n *node, release chan struct{}) {
			n.c.cfg.Codec.Decode = func(data []byte) (string, error) {
				if string(data) == "B" {
					<-release
				}
				return string(data), nil
			}
		},
		"Validate": func(n *node, release chan struct{}) {
			n.c.cfg.Codec.Validate = func(text string) error {
				if text == "B" {
					<-release
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, release := proven(t, "A"), make(chan struct{})
				defer close(release)
				hang(n, release)
				n.delivers("B")
				n.goes(callTimeout + patience)
				n.is("A", isFalse, PhaseGood, ReasonDecodeFailed)
				n.delivers("B")
				n.delivers("C")
				n.goes(shutdownTimeout) // for the call that is left behind
				n.restarts()
				n.is("C", isTrue, PhaseTrial, ReasonTrial)
			})
		})
	}
}

// TestDecodeThatHangsInBootIsRejected: another build finds the payload on the disk.
func TestDecodeThatHangsInBootIsRejected(t *testing.T) {
	synctest.Test(t, testDecodeThatHangsInBootIsRejected)
}
func testDecodeThatHangsInBootIsRejected(t *testing.T) {
	n, release := proven(t, "A"), make(chan struct{})
	defer close(release)
	n.delivers("B")
	n.cfg.Codec.Decode = func(data []byte) (string, error) {
		if string(data) == "B" {
			<-release
		}
		return string(data), nil
	}
	start := time.Now()
	n.restarts()
	n.is("A", isFalse, PhaseRolledBack, ReasonDecodeFailed)
	if took := time.Since(start); took != callTimeout+patience && took != callTimeout {
		t.Errorf("Boot took %v", took)
	}
}

// TestAdmitThatFailsIsAskedAgain: one error, such as a connection that was
// refused, was taken for a refusal.
func TestAdmitThatFailsIsAskedAgain(t *testing.T) { synctest.Test(t, testAdmitThatFailsIsAskedAgain) }
func testAdmitThatFailsIsAskedAgain(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	var asked atomic.Int64
	var answers atomic.Bool
	n.cfg.Admit = func(context.Context, Payload) (time.Duration, error) {
		switch count := asked.Add(1); {
		case answers.Load():
			return 0, nil
		case count%2 == 0:
			panic("nil map")
		}
		return 0, &errorOf{syscall.ECONNREFUSED}
	}
	n.start()
	n.delivers("B")
	n.is("A", isTrue, PhaseGood, ReasonWaiting)
	if s := n.c.Status(); !strings.Contains(s.Message, "connection refused") {
		t.Error(s.Message)
	}
	n.goes(24 * time.Hour)
	n.is("A", isTrue, PhaseGood, ReasonWaiting)
	if asked := asked.Load(); asked < 24*12 || asked > 24*24+10 {
		t.Errorf("asked %d times in a day", asked)
	}
	answers.Store(true)
	n.goes(admitRetry().Cap)
	n.restarts()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
}

type errorOf struct{ syscall.Errno }

// TestErrorHandlerMayCallMethodsAfterAdmitFails: ErrorHandler was called under the lock
// that Verdict and Forget take, and neither they nor Run returned.
func TestErrorHandlerMayCallMethodsAfterAdmitFails(t *testing.T) {
	for name, admit := range map[string]func() error{
		"Fails":  func() error { return &errorOf{syscall.ECONNREFUSED} },
		"Panics": func() error { panic("nil map") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testErrorHandlerMayCallMethods(t, admit) })
		})
	}
}

func testErrorHandlerMayCallMethods(t *testing.T, admit func() error) {
	n := newNode(t)
	n.cfg.Admit = func(_ context.Context, p Payload) (time.Duration, error) {
		if string(p.Data) == "B" {
			return 0, admit()
		}
		return 0, nil
	}
	n.start()
	n.delivers("A")
	n.restarts()
	n.stop(nil)
	told := 0
	n.cfg.ErrorHandler = func(_ context.Context, err error, _ string) {
		if !n.c.mu.TryLock() {
			t.Error("ErrorHandler is called under the lock") // calling a method would hang
			return
		}
		n.c.mu.Unlock()
		told++
		if err := errors.Join(n.c.Forget(DigestOf([]byte("C"))), n.c.Verdict(err)); err != nil {
			t.Error(err)
		}
	}
	n.start()
	n.is("A", isTrue, PhaseTrial, ReasonTrial)
	n.delivers("B")
	if told != 1 {
		t.Fatalf("ErrorHandler was called %d times", told)
	}
	n.restarts()
	n.is("default", isFalse, PhaseRolledBack, ReasonUnhealthy)
}

// TestRefusalIsFinal for the same build and content.
func TestRefusalIsFinal(t *testing.T) { synctest.Test(t, testRefusalIsFinal) }
func testRefusalIsFinal(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	asked := 0
	n.cfg.Admit = func(context.Context, Payload) (time.Duration, error) {
		asked++
		return 0, fmt.Errorf("not signed: %w", ErrRefused)
	}
	n.start()
	for range 5 {
		n.delivers("B")
		n.goes(time.Hour)
		n.is("A", isFalse, PhaseGood, ReasonNotAdmitted)
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestZeroPayloadUnassignsNothing: a zero value, as a source yields it by a slip,
// wiped the last-known-good configuration.
func TestZeroPayloadUnassignsNothing(t *testing.T) { synctest.Test(t, testZeroPayloadUnassignsNothing) }
func testZeroPayloadUnassignsNothing(t *testing.T) {
	n := proven(t, "A")
	before := n.disk.Changes()
	for _, p := range []Payload{{}, {Name: "nowhere"}, {Data: []byte("B"), Unassign: true}, {Data: []byte{}, Unassign: true}} {
		n.yields(delivery{payload: p})
		n.goes(time.Minute)
		n.runs()
		n.is("A", isTrue, PhaseGood, ReasonSourceFailed)
	}
	if n.disk.Changes() != before {
		t.Error("the disk was changed")
	}
	n.delivers("A")
	n.is("A", isTrue, PhaseGood, ReasonGood)
}

// TestZeroPayloadsAreNoBusyLoop: they are errors, and paced like errors.
func TestZeroPayloadsAreNoBusyLoop(t *testing.T) { synctest.Test(t, testZeroPayloadsAreNoBusyLoop) }
func testZeroPayloadsAreNoBusyLoop(t *testing.T) {
	n := newNode(t)
	yields := 0
	n.cfg.Source = SourceFunc(func(context.Context) iter.Seq2[Payload, error] {
		return func(yield func(Payload, error) bool) {
			for yield(Payload{}, nil) {
				yields++
			}
		}
	})
	n.start()
	n.goes(time.Hour)
	if yields > 800 {
		t.Errorf("%d payloads in an hour", yields)
	}
}

// TestStoreFullEndsWithTheDisk: the reason stayed after there was room again and
// the running configuration was delivered.
func TestStoreFullEndsWithTheDisk(t *testing.T) { synctest.Test(t, testStoreFullEndsWithTheDisk) }
func testStoreFullEndsWithTheDisk(t *testing.T) {
	n := proven(t, "A")
	n.disk.Break(syscall.ENOSPC)
	n.delivers("B")
	n.is("A", isFalse, PhaseGood, ReasonStoreFull)
	n.disk.Break(nil)
	n.delivers("A")
	n.is("A", isTrue, PhaseGood, ReasonGood)
}

// TestFailedCommitIsRetried: so is a failure of the record itself, without a
// payload that waits for it.
func TestFailedCommitIsRetried(t *testing.T) { synctest.Test(t, testFailedCommitIsRetried) }
func testFailedCommitIsRetried(t *testing.T) {
	n := proven(t, "A")
	// The step that fails is the write of the slot: two writes of the note, and
	// five changes for the payload, come before it.
	n.disk.Fail[n.disk.Changes()+8] = syscall.ENOSPC
	n.delivers("B")
	n.is("A", isFalse, PhaseGood, ReasonStoreFull)
	n.delivers("A")
	n.goes(time.Minute)
	n.is("A", isTrue, PhaseGood, ReasonGood)
	before := n.disk.Changes()
	n.goes(24 * time.Hour)
	if n.disk.Changes() != before {
		t.Error("the disk is written after it has recovered")
	}
}

// The first failure of each outage is reported, and not only of the first outage.
func TestEachOutageOfTheStoreIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := proven(t, "A")
		n.stop(nil)
		reported := 0
		n.cfg.ErrorHandler = func(_ context.Context, _ error, msg string) {
			if msg == "Failed to write the store" {
				reported++
			}
		}
		n.start()
		for outage, text := range []string{"B", "C"} {
			n.disk.Break(syscall.EIO)
			n.delivers(text)
			n.goes(10 * time.Minute)
			n.disk.Break(nil)
			n.delivers("A")
			n.goes(10 * time.Minute)
			if reported != outage+1 {
				t.Errorf("%d reports after outage %d", reported, outage+1)
			}
		}
	})
}

// TestFailedPromotionIsPaced: on a disk that stays broken it is tried ever more
// rarely, and succeeds when the disk works.
func TestFailedPromotionIsPaced(t *testing.T) { synctest.Test(t, testFailedPromotionIsPaced) }
func testFailedPromotionIsPaced(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Trial.Health, n.cfg.Trial.Every = healthy, time.Second
	n.start()
	n.delivers("B")
	n.restarts()
	n.disk.Break(syscall.EIO)
	n.goes(DefaultSoak)
	before := n.disk.Changes()
	n.goes(24 * time.Hour)
	n.is("B", isFalse, PhaseTrial, ReasonStoreFailed)
	if tries := n.disk.Changes() - before; tries < 100 || tries > 700 {
		t.Errorf("%d tries in a day", tries)
	}
	n.disk.Break(nil)
	n.goes(storeRetry().Cap)
	n.is("B", isTrue, PhaseGood, ReasonGood)
}

// TestNewerRecordWithMoreRejections is readable: a version that keeps more of them
// must not make a downgrade lose the store.
func TestNewerRecordWithMoreRejections(t *testing.T) {
	synctest.Test(t, testNewerRecordWithMoreRejections)
}
func testNewerRecordWithMoreRejections(t *testing.T) {
	n := proven(t, "A")
	newer := stored(n.c.store)
	n.kill()
	newer.Schema, newer.MinReader, newer.Gen = 2, 1, newer.Gen+1
	for _, text := range []string{"1", "2", "3", "4", "5", "6"} {
		newer.Rejected = append(newer.Rejected, rollout.Rejection{Digest: ref(text).core().Digest, Build: "1", Reason: "Unhealthy", Message: text})
	}
	slot, err := slotOf(newer)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{slotstore.SlotA, slotstore.SlotB} {
		n.disk.Put(name, slot)
	}
	n.start()
	n.is("A", isTrue, PhaseGood, ReasonGood)
	n.delivers("6")
	n.is("A", isFalse, PhaseGood, ReasonUnhealthy)
	n.delivers("B")
	n.restarts()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	if r := n.c.core.Record(); len(r.Rejected) != rollout.MaxRejected || r.Schema != rollout.Schema {
		t.Errorf("%+v", r)
	}
}
