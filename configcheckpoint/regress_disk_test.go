// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
)

// TestRolledBackStaysSoWhateverComes: a payload that is rejected and assigned
// stays so, whatever comes to the door. The roll-back is to a configuration that was
// promoted without a restart after it (kubernetes issue 57808).
func TestRolledBackStaysSoWhateverComes(t *testing.T) {
	synctest.Test(t, testRolledBackStaysSoWhateverComes)
}
func testRolledBackStaysSoWhateverComes(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	for range 3 {
		for _, bad := range []string{"bad 1", "bad 2", "bad 3", "bad 4", "bad 5", "bad 6"} {
			n.delivers(bad)
		}
	}
	n.delivers("B")
	n.goes(time.Hour)
	n.runs()
	n.stop(nil)
	n.start()
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
}

// TestHangingHealthRollsBack: what hangs is no less ill than what fails, also
// if it ignores its context.
func TestHangingHealthRollsBack(t *testing.T) {
	for name, health := range map[string]func(context.Context, chan struct{}) error{
		"until its deadline": func(ctx context.Context, _ chan struct{}) error { <-ctx.Done(); return ctx.Err() },
		"for ever":           func(_ context.Context, release chan struct{}) error { <-release; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer close(release)
				n := proven(t, "A")
				n.cfg.Trial.Health = func(ctx context.Context) error { return health(ctx, release) }
				n.delivers("B")
				n.restarts()
				n.goes(5 * time.Minute)
				n.restarts()
				n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
			})
		})
	}
}

// TestPanicInDecodeIsOneAttempt: at the door it is one rejection; in another build, which
// finds the payload on the disk, it is one start.
func TestPanicInDecodeIsOneAttempt(t *testing.T) { synctest.Test(t, testPanicInDecodeIsOneAttempt) }
func testPanicInDecodeIsOneAttempt(t *testing.T) {
	n := proven(t, "A")
	n.cfg.Codec.Decode = func(data []byte) (string, error) {
		if string(data) != "A" {
			panic("out of range")
		}
		return string(data), nil
	}
	n.delivers("B") // by a process whose Decode is well
	n.restarts()
	n.is("A", isFalse, PhaseRolledBack, ReasonDecodeFailed)
	n.delivers("C")
	n.runs()
	n.is("A", isFalse, PhaseRolledBack, ReasonDecodeFailed)
	if s := n.c.Status(); !strings.Contains(s.Message, "panic in Codec.Decode: out of range") {
		t.Error(s.Message)
	}
}

// TestDowngradeDoesNotOverwrite: a record of a newer version kept an older
// program from booting.
func TestDowngradeDoesNotOverwrite(t *testing.T) { synctest.Test(t, testDowngradeDoesNotOverwrite) }
func testDowngradeDoesNotOverwrite(t *testing.T) {
	n := proven(t, "A")
	newer := stored(n.c.store)
	n.kill()
	newer.Schema, newer.MinReader, newer.Gen = rollout.Schema+1, rollout.Schema+1, newer.Gen+1
	slot, err := slotOf(newer)
	if err != nil {
		t.Fatal(err)
	}
	n.disk.Put(slotstore.SlotA, slot)
	before := n.disk.Changes()
	n.start()
	if n.active.Config != "A" || n.active.Role != RoleLastKnownGood {
		t.Errorf("%+v", n.active)
	}
	n.is("A", isFalse, PhaseDegraded, ReasonStoreTooNew)
	n.delivers("B")
	n.goes(time.Hour)
	n.runs()
	n.stop(nil)
	if n.disk.Changes() != before {
		t.Errorf("the store was changed")
	}
	// And one whose fields mean something else.
	text := []byte(`{"schema":9,"minReader":9,"gen":99,"assigned":"elsewhere","lastKnownGood":[1]}`)
	framed := frame(text)
	n.disk.Put(slotstore.SlotA, framed)
	n.start()
	n.is("default", isFalse, PhaseDegraded, ReasonStoreTooNew)
}

// TestDowngradeTakesTheNewestRecord: of two records of a newer version, the one in
// the second slot counted, even if it was older.
func TestDowngradeTakesTheNewestRecord(t *testing.T) {
	for newest, other := range map[string]string{slotstore.SlotA: slotstore.SlotB, slotstore.SlotB: slotstore.SlotA} {
		synctest.Test(t, func(t *testing.T) {
			n := proven(t, "A")
			committed := func() rollout.Record {
				n.c.mu.Lock()
				defer n.c.mu.Unlock()
				return stored(n.c.store)
			}
			n.delivers("B")
			n.restarts()
			onTrial := committed()
			n.goes(DefaultSoak)
			promoted := committed()
			n.kill()
			for name, r := range map[string]rollout.Record{newest: promoted, other: onTrial} {
				r.Schema, r.MinReader = rollout.Schema+1, rollout.Schema+1
				slot, err := slotOf(r)
				if err != nil {
					t.Fatal(err)
				}
				n.disk.Put(name, slot)
			}
			n.start()
			if n.active.Config != "B" {
				t.Errorf("runs %q, and the newest record, in %s, has B", n.active.Config, newest)
			}
		})
	}
}

// TestCountedStops: a clean stop of a healthy process is not a failed start, and any
// other stop is.
func TestCountedStops(t *testing.T) {
	for name, stop := range map[string]struct {
		health, why error
		want        int // of the next start
	}{
		"healthy":              {nil, nil, 1},
		"unhealthy":            {errors.New("ill"), nil, 2},
		"failure of the agent": {nil, errors.New("port is taken"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStops(t, stop.health, stop.why, stop.want) })
		})
	}
}

func testStops(t *testing.T, health, why error, want int) {
	n := proven(t, "A")
	n.cfg.Trial.Health = func(context.Context) error { return health }
	n.delivers("B")
	n.restarts()
	n.goes(30 * time.Second)
	n.stop(why)
	n.start()
	if s := n.c.Status(); s.Attempt != want {
		t.Errorf("start %d, want %d", s.Attempt, want)
	}
	if why == nil {
		return
	}
	n.stop(why)
	n.start()
	n.stop(why)
	n.start()
	n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
	if s := n.c.Status(); !strings.Contains(s.Message, "the last one said: "+why.Error()) {
		t.Error(s.Message)
	}
}

// TestRejectReasonReachesStatus: the reason was "see the log".
func TestRejectReasonReachesStatus(t *testing.T) {
	synctest.Test(t, testRejectReasonReachesStatus)
}
func testRejectReasonReachesStatus(t *testing.T) {
	n := proven(t, "A")
	n.delivers("bad 1")
	if c := n.c.Status(); c.OK || c.Reason != ReasonDecodeFailed || !strings.Contains(c.Message, "bad from the start") {
		t.Errorf("%+v", c)
	}
	n.stop(nil)
	n.start() // the reason is remembered with the rejection
	n.delivers("bad 1")
	if again := n.c.Status(); again.Reason != ReasonDecodeFailed || !strings.Contains(again.Message, "bad from the start") {
		t.Errorf("%+v", again)
	}
}

// TestTransitionTimeStable: the transition time moved with every sync that
// failed.
func TestTransitionTimeStable(t *testing.T) { synctest.Test(t, testTransitionTimeStable) }
func testTransitionTimeStable(t *testing.T) {
	n := proven(t, "A")
	n.goes(time.Hour)
	n.delivers("bad 1")
	since := n.c.Status().Since
	if since != time.Now() {
		t.Errorf("the transition is dated %v, want now", since)
	}
	reports := len(n.seen)
	for range 100 {
		n.goes(10 * time.Second)
		n.yields(delivery{err: errors.New("no connection")})
		n.delivers("bad 1")
	}
	if got := n.c.Status().Since; got != since {
		t.Errorf("the transition time moved by %v", got.Sub(since))
	}
	if grown := len(n.seen) - reports; grown != 200 {
		t.Errorf("%d reports of 200 changes", grown)
	}
	reports = len(n.seen)
	for range 100 {
		n.goes(10 * time.Second)
		n.delivers("bad 1")
	}
	if grown := len(n.seen) - reports; grown != 0 {
		t.Errorf("%d reports of no change", grown)
	}
}
