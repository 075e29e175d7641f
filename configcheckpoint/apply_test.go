// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hot makes a node whose processes take a new configuration as they run; err
// says what Apply answers for one.
func hot(t *testing.T, text string, err func(Active[string]) error) *node {
	t.Helper()
	n := proven(t, text)
	n.stop(nil)
	n.cfg.Apply = func(_ context.Context, a Active[string]) error {
		n.active = a
		return err(a)
	}
	n.start()
	return n
}

func takesAll(Active[string]) error { return nil }

func TestHotApply(t *testing.T) { synctest.Test(t, testHotApply) }
func testHotApply(t *testing.T) {
	n := hot(t, "A", takesAll)
	n.delivers("B")
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	n.goes(DefaultSoak)
	n.is("B", isTrue, PhaseGood, ReasonGood)
	n.delivers("C")
	n.goes(time.Minute)
	n.delivers("D")
	n.is("D", isTrue, PhaseTrial, ReasonTrial)
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	n.is("B", isFalse, PhaseRolledBack, ReasonUnhealthy)
	n.delivers("")
	n.is("default", isTrue, PhaseDefault, ReasonDefault)
	n.runs()
}

// TestHotApplyIsCounted: the process dies of the configuration that it applied.
func TestHotApplyIsCounted(t *testing.T) { synctest.Test(t, testHotApplyIsCounted) }
func testHotApplyIsCounted(t *testing.T) {
	n := hot(t, "A", takesAll)
	n.delivers("B")
	for range DefaultAttempts {
		if n.active.Config != "B" || !n.active.Trial {
			t.Errorf("%+v", n.active)
		}
		n.kill()
		n.start()
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
}

func TestApplyFails(t *testing.T) { synctest.Test(t, testApplyFails) }
func testApplyFails(t *testing.T) {
	n := hot(t, "A", func(a Active[string]) error {
		if a.Config == "B" {
			return errors.New("socket is busy")
		}
		return nil
	})
	n.delivers("B")
	n.is("A", isFalse, PhaseRolledBack, ReasonApplyFailed) // and A was applied again
	if s := n.c.Status(); !strings.Contains(s.Message, "socket is busy") {
		t.Error(s.Message)
	}
	n.delivers("B")
	n.runs()
	n.delivers("C")
	n.is("C", isTrue, PhaseTrial, ReasonTrial)
}

// TestApplyOfFallbackFails: nothing can be applied, so the process
// has to go.
func TestApplyOfFallbackFails(t *testing.T) { synctest.Test(t, testApplyOfFallbackFails) }
func testApplyOfFallbackFails(t *testing.T) {
	n := hot(t, "A", func(Active[string]) error { return errors.New("all is lost") })
	n.delivers("B")
	n.restarts()
	n.is("A", isFalse, PhaseRolledBack, ReasonApplyFailed)
}

// TestApplyHangs: what ignores its deadline may still be at work, so nothing
// else is applied in this process.
func TestApplyHangs(t *testing.T) { synctest.Test(t, testApplyHangs) }
func testApplyHangs(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	n := hot(t, "A", func(a Active[string]) error {
		if a.Config == "B" {
			<-release
		}
		return nil
	})
	n.delivers("B")
	n.goes(callTimeout + patience + shutdownTimeout)
	n.restarts()
	n.is("A", isFalse, PhaseRolledBack, ReasonApplyFailed)
}

// TestStopDuringApply: a stop on request is no failure of the configuration that was
// being applied. Its start was recorded, and the process was stopped before it took effect.
func TestStopDuringApply(t *testing.T) { synctest.Test(t, testStopDuringApply) }
func testStopDuringApply(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Trial.Health = func(context.Context) error { return errors.New("not called for A") }
	n.cfg.Apply = func(ctx context.Context, _ Active[string]) error { <-ctx.Done(); return ctx.Err() }
	n.start()
	n.delivers("B")
	n.stop(nil)
	if n.err != nil {
		t.Errorf("Run returned %v", n.err)
	}
	n.start()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	if s := n.c.Status(); s.Attempt != 1 {
		t.Errorf("start %d, want 1", s.Attempt)
	}
}

func TestAdmitWaits(t *testing.T) { synctest.Test(t, testAdmitWaits) }
func testAdmitWaits(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	asked := 0
	n.cfg.Admit = func(_ context.Context, p Payload) (time.Duration, error) {
		asked++
		p.Data[0] = 'X' // it is a copy
		if asked <= 3 {
			return time.Minute, nil
		}
		return 0, nil
	}
	n.start()
	n.delivers("B")
	n.is("A", isTrue, PhaseGood, ReasonWaiting)
	before := n.disk.Changes()
	n.goes(3*time.Minute - time.Second)
	n.is("A", isTrue, PhaseGood, ReasonWaiting)
	if n.disk.Changes() != before {
		t.Error("the disk was written before it was admitted")
	}
	n.goes(time.Second)
	n.restarts()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	if asked != 4 {
		t.Errorf("asked %d times", asked)
	}
	n.delivers("A") // the way back is not asked for
	n.restarts()
	if asked != 4 {
		t.Errorf("asked for the way back")
	}
}

// TestAdmitWaitIsSuperseded: what waits is forgotten when something newer
// comes, or the old.
func TestAdmitWaitIsSuperseded(t *testing.T) { synctest.Test(t, testAdmitWaitIsSuperseded) }
func testAdmitWaitIsSuperseded(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Admit = func(_ context.Context, p Payload) (time.Duration, error) {
		if string(p.Data) == "B" {
			return time.Hour, nil
		}
		return 0, nil
	}
	n.start()
	n.delivers("B")
	n.delivers("A")
	n.is("A", isTrue, PhaseGood, ReasonGood)
	n.goes(2 * time.Hour)
	n.runs()
	n.delivers("B")
	n.delivers("C")
	n.restarts()
	n.is("C", isTrue, PhaseTrial, ReasonTrial)
}

// TestAdmitWithoutAnswer: no answer is not a verdict, neither at a deadline nor
// at shutdown.
func TestAdmitWithoutAnswer(t *testing.T) { synctest.Test(t, testAdmitWithoutAnswer) }
func testAdmitWithoutAnswer(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	var answers atomic.Bool
	n.cfg.Admit = func(ctx context.Context, _ Payload) (time.Duration, error) {
		if answers.Load() {
			return 0, nil
		}
		<-ctx.Done()
		return 0, ctx.Err()
	}
	n.start()
	n.delivers("B")
	n.goes(time.Hour)
	n.is("A", isTrue, PhaseGood, ReasonWaiting)
	n.stop(nil)
	n.start()
	n.delivers("B")
	answers.Store(true)
	n.goes(2 * callTimeout)
	n.restarts()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
}

// TestHotApplyWaitsForDisk: a trial that can't be counted is not applied, and the one that runs
// is not applied again and again in the meantime.
func TestHotApplyWaitsForDisk(t *testing.T) { synctest.Test(t, testHotApplyWaitsForDisk) }
func testHotApplyWaitsForDisk(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.disk.Break(errReadOnly)
	n.cfg.Apply = func(_ context.Context, a Active[string]) error {
		if a.Config == "A" {
			t.Error("what runs was applied again")
		}
		n.active = a
		return nil
	}
	n.restarts()
	n.is("A", isFalse, PhaseDegraded, ReasonStoreReadOnly)
	n.goes(24 * time.Hour)
	n.is("A", isFalse, PhaseDegraded, ReasonStoreReadOnly)
	n.disk.Break(nil)
	n.goes(storeRetry().Cap)
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
}

// hotChecked makes a node as hot does, with a Trial.Health that depends on what was
// applied last. The test must store in applied what a restart brings.
func hotChecked(t *testing.T, text string, health func(ctx context.Context, applied string) error) (n *node, applied *atomic.Value) {
	t.Helper()
	applied = new(atomic.Value)
	applied.Store(text)
	n = hot(t, text, func(a Active[string]) error { applied.Store(a.Config); return nil })
	n.stop(nil)
	n.cfg.Trial.Health = func(ctx context.Context) error { return health(ctx, applied.Load().(string)) }
	n.start()
	return n, applied
}

// hungByB returns a Trial.Health that hangs until release once B is applied.
func hungByB(release <-chan struct{}) func(ctx context.Context, applied string) error {
	return func(_ context.Context, applied string) error {
		if applied == "B" {
			<-release
		}
		return nil
	}
}

// TestHealthThatHangsCondemnsNoLaterOne: a call of Health that never returned was
// counted against every configuration that was applied after it.
func TestHealthThatHangsCondemnsNoLaterOne(t *testing.T) {
	synctest.Test(t, testHealthThatHangsCondemnsNoLaterOne)
}
func testHealthThatHangsCondemnsNoLaterOne(t *testing.T) {
	for _, rolledBack := range []bool{false, true} {
		release := make(chan struct{})
		defer close(release)
		n, applied := hotChecked(t, "A", hungByB(release))
		n.delivers("B")
		n.goes(time.Second)
		if rolledBack {
			n.goes(5 * time.Minute)
			applied.Store("A")
			n.restarts()
			n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
			n.goes(24 * time.Hour)
			n.delivers("C")
		} else {
			n.delivers("C")
			n.goes(patience + shutdownTimeout)
			if n.err == nil || !strings.Contains(n.err.Error(), "Trial.Health did not return") {
				t.Errorf("Run returned %v", n.err)
			}
			applied.Store("C")
			n.restarts()
		}
		n.is("C", isTrue, PhaseTrial, ReasonTrial)
		if s := n.c.Status(); s.Attempt != 1 {
			t.Errorf("start %d, want 1", s.Attempt)
		}
		n.goes(DefaultSoak)
		n.is("C", isTrue, PhaseGood, ReasonGood)
	}
}

// TestHealthThatHangsInAPromotedOne: Verdict has ended the trial in the meantime.
func TestHealthThatHangsInAPromotedOne(t *testing.T) {
	synctest.Test(t, testHealthThatHangsInAPromotedOne)
}
func testHealthThatHangsInAPromotedOne(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	n, applied := hotChecked(t, "A", hungByB(release))
	n.delivers("B")
	if err := n.c.Verdict(nil); err != nil {
		t.Fatal(err)
	}
	n.goes(time.Hour)
	n.is("B", isTrue, PhaseGood, ReasonGood)
	n.delivers("C")
	n.goes(patience + shutdownTimeout)
	applied.Store("C")
	n.restarts()
	n.goes(DefaultSoak)
	n.is("C", isTrue, PhaseGood, ReasonGood)
}

// TestHealthOfAnEarlierOneDoesNotCount: a check that was under way when another
// configuration was applied stood in for that one's first check, up to 30 s later.
func TestHealthOfAnEarlierOneDoesNotCount(t *testing.T) {
	synctest.Test(t, testHealthOfAnEarlierOneDoesNotCount)
}
func testHealthOfAnEarlierOneDoesNotCount(t *testing.T) {
	for _, late := range []error{nil, errors.New("ill")} {
		n, _ := hotChecked(t, "A", func(ctx context.Context, applied string) error {
			if applied == "B" {
				<-ctx.Done()
				return late
			}
			return nil
		})
		n.delivers("B")
		n.goes(time.Second)
		n.delivers("C")
		n.goes(DefaultSoak - time.Second)
		n.is("C", isTrue, PhaseTrial, ReasonTrial)
		n.goes(time.Second)
		n.is("C", isTrue, PhaseGood, ReasonGood)
	}
}

// TestALateCheckOfAnEarlierOneDoesNotCount: it returned after its deadline, and before
// another configuration was applied.
func TestALateCheckOfAnEarlierOneDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := hotChecked(t, "A", func(_ context.Context, applied string) error {
			if applied == "B" {
				time.Sleep(callTimeout + 5*time.Second)
			}
			return nil
		})
		n.delivers("B")
		n.goes(callTimeout + time.Second)
		if s := n.c.Status(); !strings.Contains(s.Message, "unhealthy: no answer within 30s") {
			t.Errorf("a check that hangs: %+v", s)
		}
		n.goes(6 * time.Second)
		n.delivers("C")
		n.goes(time.Second)
		n.is("C", isTrue, PhaseTrial, ReasonTrial)
		if s := n.c.Status(); strings.Contains(s.Message, "unhealthy") {
			t.Errorf("a check that is well: %+v", s)
		}
	})
}

// TestACheckHasItsTime: the context of Health lives until Health has returned.
func TestACheckHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := hotChecked(t, "A", func(ctx context.Context, applied string) error {
			select {
			case <-time.After(callTimeout / 2):
				return ctx.Err()
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		n.delivers("B")
		n.goes(DefaultSoak / 2)
		if s := n.c.Status(); s.Phase != PhaseTrial || strings.Contains(s.Message, "unhealthy") {
			t.Errorf("a check that is slow, and well: %+v", s)
		}
		n.goes(DefaultSoak)
		n.is("B", isTrue, PhaseGood, ReasonGood)
	})
}

// TestAdmitThatAnswersLate is asked again at once, and not minutes later.
func TestAdmitThatAnswersLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := proven(t, "A")
		n.stop(nil)
		var calls atomic.Int64
		n.cfg.Admit = func(context.Context, Payload) (time.Duration, error) {
			if calls.Add(1) == 1 {
				time.Sleep(20 * time.Minute)
			}
			return 0, nil
		}
		n.start()
		n.delivers("B")
		n.goes(20*time.Minute - time.Second)
		n.is("A", isTrue, PhaseGood, ReasonWaiting)
		if calls.Load() != 1 {
			t.Errorf("%d calls at once", calls.Load())
		}
		n.goes(time.Second)
		n.restarts()
		n.is("B", isTrue, PhaseTrial, ReasonTrial)
	})
}

// TestHealthIsCalledInATrialOnly: the timer of a trial outlived it.
func TestHealthIsCalledInATrialOnly(t *testing.T) { synctest.Test(t, testHealthIsCalledInATrialOnly) }
func testHealthIsCalledInATrialOnly(t *testing.T) {
	n, _ := hotChecked(t, "A", func(_ context.Context, applied string) error {
		if applied != "B" {
			t.Errorf("Health is called for %s", applied)
		}
		return nil
	})
	n.delivers("B")
	n.goes(time.Minute)
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	n.goes(time.Hour)
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
}

// TestForgottenWhileItsCheckEnds: what runs may run on after all, and its checks begin
// again.
func TestForgottenWhileItsCheckEnds(t *testing.T) { synctest.Test(t, testForgottenWhileItsCheckEnds) }
func testForgottenWhileItsCheckEnds(t *testing.T) {
	calls := 0
	n, applied := hotChecked(t, "A", func(ctx context.Context, _ string) error {
		if calls++; calls == 1 {
			<-ctx.Done()
			time.Sleep(patience / 2)
		}
		return nil
	})
	n.delivers("B")
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if err := n.c.Forget(DigestOf([]byte("B"))); err != nil {
		t.Fatal(err)
	}
	n.goes(patience)
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	n.goes(DefaultSoak)
	n.is("B", isTrue, PhaseGood, ReasonGood)
	if applied.Load() != "B" {
		t.Errorf("%v was applied", applied.Load())
	}
}
