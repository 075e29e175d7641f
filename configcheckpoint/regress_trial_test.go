// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
)

// TestTwoBuildsThatTakeTurns: a boot loader tries its two images one after the other.
// The starts of each made the starts of the other one forgotten, so that a configuration
// of which both die was started without end.
func TestTwoBuildsThatTakeTurns(t *testing.T) { synctest.Test(t, testTwoBuildsThatTakeTurns) }
func testTwoBuildsThatTakeTurns(t *testing.T) {
	for _, builds := range []int{2, rollout.MaxOthers + 1} {
		n := proven(t, "A")
		n.delivers("B")
		n.restarts()
		deaths := 0
		for i := range 40 {
			if n.active.Config == "B" {
				deaths++
			}
			n.kill()
			n.cfg.Build = fmt.Sprint(1 + (i+1)%builds)
			n.start()
		}
		if want := DefaultAttempts * builds; deaths != want {
			t.Errorf("%d builds: %d deaths, want %d", builds, deaths, want)
		}
		n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
	}
}

// TestStopsDuringASlowValidateAreNoDeaths: the note that an inspection is under way
// outlived a process that was asked to stop, and counted as its death.
func TestStopsDuringASlowValidateAreNoDeaths(t *testing.T) {
	synctest.Test(t, testStopsDuringASlowValidateAreNoDeaths)
}
func testStopsDuringASlowValidateAreNoDeaths(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	defer time.Sleep(time.Minute) // for the calls that were left behind
	var slow atomic.Bool
	slow.Store(true)
	n.cfg.Codec.Validate = func(text string) error {
		if text == "B" && slow.Load() {
			time.Sleep(20 * time.Second)
		}
		return nil
	}
	for range 2 * DefaultAttempts {
		n.start()
		n.delivers("B")
		n.stop(nil)
	}
	slow.Store(false)
	n.start()
	n.delivers("B")
	n.restarts()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
}

// TestAStopWithoutCloseIsNoDeath, if Decode has returned before Run has.
func TestAStopWithoutCloseIsNoDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := proven(t, "A")
		n.stop(nil)
		n.cfg.Codec.Decode = func(data []byte) (string, error) {
			if string(data) == "B" {
				time.Sleep(patience / 2)
			}
			return string(data), nil
		}
		for range DefaultAttempts {
			n.start()
			n.delivers("B")
			n.kill()
		}
		n.start()
		n.delivers("B")
		n.goes(patience)
		n.restarts()
		n.goes(time.Second)
		n.is("B", isTrue, PhaseTrial, ReasonTrial)
	})
}

// TestPowerCutsOfALongTrialAreNoCrashLoop: a configuration whose health comes and goes
// is never promoted, and never rolled back for its health. Three power cuts, however far
// apart, rolled it back.
func TestPowerCutsOfALongTrialAreNoCrashLoop(t *testing.T) {
	synctest.Test(t, testPowerCutsOfALongTrialAreNoCrashLoop)
}
func testPowerCutsOfALongTrialAreNoCrashLoop(t *testing.T) {
	n := proven(t, "A")
	n.stop(nil)
	n.cfg.Trial.Health = func(context.Context) error {
		if time.Now().Minute()%5 == 0 && time.Now().Second() < 30 {
			return errors.New("flaps")
		}
		return nil
	}
	n.start()
	n.delivers("B")
	n.restarts()
	for day := range 4 {
		before := n.disk.Changes()
		n.goes(24 * time.Hour)
		if changes := n.disk.Changes() - before; changes > 2 { // a write and its flush
			t.Errorf("%d changes of the disk in a day", changes)
		}
		n.is("B", isTrue, PhaseTrial, ReasonTrial)
		n.kill()
		n.boot = fmt.Sprint("boot ", day+2)
		n.start()
	}
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	// A death before it has lived for Soak counts.
	for range DefaultAttempts {
		n.goes(DefaultSoak - time.Second)
		n.kill()
		n.start()
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
}
