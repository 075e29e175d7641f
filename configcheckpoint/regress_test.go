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

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
)

// The tests of this file and of regress_disk_test.go are named after bugs of the
// systems before this one.

// TestPromotesRunningNotStored: the payload on the disk was promoted, so
// that a configuration that had never run became the last-known-good one.
func TestPromotesRunningNotStored(t *testing.T) { synctest.Test(t, testPromotesRunningNotStored) }
func testPromotesRunningNotStored(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	n.goes(DefaultSoak - time.Second)
	n.delivers("C") // stored; B runs on until the restart
	if err := n.c.Verdict(nil); !errors.Is(err, ErrNoTrial) {
		t.Errorf("Verdict on what is not assigned any more: %v", err)
	}
	n.goes(time.Hour)
	if lkg := n.c.core.Record().LKG; lkg.Digest != ref("A").core().Digest {
		t.Errorf("%v is called good", lkg)
	}
	n.restarts()
	n.is("C", isTrue, PhaseTrial, ReasonTrial)
}

// TestCrashLoopEndsOnLastKnownGood: a configuration that validates and then
// takes the process down was never rolled back.
func TestCrashLoopEndsOnLastKnownGood(t *testing.T) {
	synctest.Test(t, testCrashLoopEndsOnLastKnownGood)
}
func testCrashLoopEndsOnLastKnownGood(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	for start := range DefaultAttempts {
		n.is("B", isTrue, PhaseTrial, ReasonTrial)
		if start == 1 {
			n.boot = "boot 2" // the machine went down with it
		}
		n.kill()
		n.start()
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
	if s := n.c.Status(); !strings.Contains(s.Message, "3 starts without success, 1 of them ended with a reboot") {
		t.Error(s.Message)
	}
	// A crash of a good one, a day later, causes no roll-back.
	for range 10 {
		n.goes(24 * time.Hour)
		n.kill()
		n.start()
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
}

// TestBrokenLastKnownGoodStillBoots: an unreadable last-known-good
// configuration kept the node from booting.
func TestBrokenLastKnownGoodStillBoots(t *testing.T) {
	synctest.Test(t, testBrokenLastKnownGoodStillBoots)
}
func testBrokenLastKnownGoodStillBoots(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	n.goes(DefaultSoak)
	n.kill()
	n.spoil("B")
	n.start()
	n.is("A", isFalse, PhaseDegraded, ReasonCheckpointCorrupt)
	if n.active.Role != RolePrevious {
		t.Errorf("%+v", n.active)
	}
	n.kill()
	n.spoil("A")
	n.start()
	n.is("default", isFalse, PhaseDegraded, ReasonCheckpointCorrupt)
}

// spoil damages the stored payload of a configuration.
func (n *node) spoil(text string) {
	n.t.Helper()
	path := slotstore.PayloadPath(ref(text).Digest)
	if _, exists := n.disk.Data(path); !exists {
		n.t.Fatalf("%s is not stored", text)
	}
	n.disk.Put(path, []byte("rot"))
}

// TestHealedCheckpointIsApplied: a damaged checkpoint was never downloaded
// again, or was and did not take effect.
func TestHealedCheckpointIsApplied(t *testing.T) { synctest.Test(t, testHealedCheckpointIsApplied) }
func testHealedCheckpointIsApplied(t *testing.T) {
	n := proven(t, "A")
	// However often the disk loses the payload, the repair is made. It asks for a
	// restart no sooner than ten seconds after the one before.
	for range 2 * DefaultAttempts {
		n.kill()
		n.spoil("A")
		n.start()
		n.is("default", isFalse, PhaseDegraded, ReasonCheckpointCorrupt)
		n.delivers("A")
		n.goes(repairRetry().Base - time.Second)
		n.delivers("A")
		n.runs()
		n.goes(time.Second)
		n.restarts()
		n.is("A", isTrue, PhaseGood, ReasonGood)
	}
}

// TestForgetRepairsWhatIsDamaged: the payload of a configuration that is tried again is
// damaged, and the source, which has delivered it already, does not deliver it again.
func TestForgetRepairsWhatIsDamaged(t *testing.T) { synctest.Test(t, testForgetRepairsWhatIsDamaged) }
func testForgetRepairsWhatIsDamaged(t *testing.T) {
	n := hot(t, "A", takesAll)
	n.delivers("B")
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
	n.spoil("B")
	if err := n.c.Forget(ref("B").Digest); err != nil {
		t.Fatal(err)
	}
	n.goes(repairRetry().Base)
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
}

// TestRepairsInOneProcessArePaced: a disk that loses the payload at once has it
// saved and applied ever more rarely.
func TestRepairsInOneProcessArePaced(t *testing.T) { synctest.Test(t, testRepairsInOneProcessArePaced) }
func testRepairsInOneProcessArePaced(t *testing.T) {
	n := proven(t, "A")
	n.kill()
	n.spoil("A")
	n.cfg.Apply = func(_ context.Context, a Active[string]) error {
		n.active = a
		return nil
	}
	n.disk.SetLossy(slotstore.PayloadPath(ref("A").Digest), true)
	n.start()
	before := n.disk.Count("rename")
	for range 24 * 60 {
		n.delivers("A")
		n.goes(time.Minute)
	}
	n.runs()
	n.is("default", isFalse, PhaseDegraded, ReasonCheckpointCorrupt)
	repairs := n.disk.Count("rename") - before
	if repairs < 24 || repairs > 24*60/5+10 {
		t.Errorf("%d repairs in a day", repairs)
	}
	n.disk.SetLossy(slotstore.PayloadPath(ref("A").Digest), false)
	n.goes(repairRetry().Cap)
	n.delivers("A")
	n.is("A", isTrue, PhaseGood, ReasonGood)
	n.stop(nil)
	if repairs := n.c.core.Record().Repairs; repairs != 0 {
		t.Errorf("%d repairs are counted, and it ran", repairs)
	}
}

// TestRepairsArePacedOverRestarts: a disk that loses the payload at every start
// restarts the process ever more rarely, and the node recovers when the disk does.
func TestRepairsArePacedOverRestarts(t *testing.T) {
	synctest.Test(t, testRepairsArePacedOverRestarts)
}
func testRepairsArePacedOverRestarts(t *testing.T) {
	n := proven(t, "A")
	n.kill()
	n.disk.SetLossy(slotstore.PayloadPath(ref("A").Digest), true)
	n.spoil("A")
	n.start()
	restarts, first := 0, 0
	for minute := range 24 * 60 {
		for range 6 { // the source delivers it every ten seconds
			n.delivers("A")
			n.goes(10 * time.Second)
			select {
			case <-n.done:
				n.restarts()
				restarts++
			default:
			}
		}
		if minute == 59 {
			first = restarts
		}
	}
	if first < 4 || first > 15 {
		t.Errorf("%d restarts in the first hour", first)
	}
	if n := restarts - first; n < 23*5 || n > 23*13 {
		t.Errorf("%d restarts in the 23 hours after it", n)
	}
	n.is("default", isFalse, PhaseDegraded, ReasonCheckpointCorrupt)
	n.disk.SetLossy(slotstore.PayloadPath(ref("A").Digest), false)
	for range 3 * 6 * 10 {
		select {
		case <-n.done:
		default:
			n.delivers("A")
			n.goes(10 * time.Second)
			continue
		}
		break
	}
	n.restarts()
	n.is("A", isTrue, PhaseGood, ReasonGood)
	if repairs := n.c.core.Record().Repairs; repairs != 0 {
		t.Errorf("%d repairs are counted, and it ran", repairs)
	}
}

// TestDamagedTrialIsHealed does the same for a configuration on trial.
func TestDamagedTrialIsHealed(t *testing.T) { synctest.Test(t, testDamagedTrialIsHealed) }
func testDamagedTrialIsHealed(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	n.kill()
	n.spoil("B")
	n.start()
	n.is("A", isFalse, PhaseDegraded, ReasonCheckpointCorrupt)
	n.delivers("B")
	n.goes(repairRetry().Base)
	n.restarts()
	n.is("B", isTrue, PhaseTrial, ReasonTrial)
	if s := n.c.Status(); s.Attempt != 2 {
		t.Errorf("start %d, want 2: the one without a payload was none", s.Attempt)
	}
}

// TestZeroLengthSlots: an empty file, such as a power cut leaves, was
// read as the wish to run the built-in configuration.
func TestZeroLengthSlots(t *testing.T) { synctest.Test(t, testZeroLengthSlots) }
func testZeroLengthSlots(t *testing.T) {
	long := []byte(strings.Repeat("x", slotSize+1)) // which is never cut short
	for _, blank := range [][]byte{{}, make([]byte, slotSize), []byte("garbage"), long} {
		n := proven(t, "A")
		for _, name := range []string{slotstore.SlotA, slotstore.SlotB} { // either one: nothing is lost
			n.kill()
			n.disk.Put(name, blank)
			n.start()
			n.is("A", isTrue, PhaseGood, ReasonGood)
		}
		n.kill()
		for _, name := range []string{slotstore.SlotA, slotstore.SlotB} {
			n.disk.Put(name, blank)
		}
		n.start()
		n.is("default", isFalse, PhaseDefault, ReasonStoreCorrupt)
		for _, name := range []string{slotstore.SlotA, slotstore.SlotB} {
			if _, exists := n.disk.Data(name + slotstore.BadSuffix); !exists {
				t.Errorf("the damaged %s was not kept", name)
			}
		}
		n.delivers("A")
		n.restarts()
		n.is("A", isTrue, PhaseTrial, ReasonTrial)
	}
}

// TestSameBuildDoesNotRetryRejected: a new configuration and an old program crash-looped until
// an operator came; the same program must not try again, a new one must.
func TestSameBuildDoesNotRetryRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { testRetryRejected(t, "1", false) })
}
func TestNewBuildRetriesRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { testRetryRejected(t, "2", true) })
}
func testRetryRejected(t *testing.T, build string, retried bool) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	if err := n.c.Verdict(errors.New("too old a program")); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	n.delivers("bad 1")
	n.stop(nil)
	n.cfg.Build = build
	n.cfg.Codec.Decode = func(data []byte) (string, error) { return string(data), nil }
	n.start()
	if retried {
		n.is("B", isTrue, PhaseTrial, ReasonTrial)
		n.delivers("bad 1") // which this build can decode
		n.restarts()
		n.is("bad 1", isTrue, PhaseTrial, ReasonTrial)
		return
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
	n.delivers("bad 1")
	n.goes(time.Hour)
	n.runs()
}

// TestInvalidUpdateDoesNotEndTrial: any further call, even one that failed,
// cancelled the timer that would have rolled back.
func TestInvalidUpdateDoesNotEndTrial(t *testing.T) {
	synctest.Test(t, testInvalidUpdateDoesNotEndTrial)
}
func testInvalidUpdateDoesNotEndTrial(t *testing.T) {
	n := proven(t, "A")
	n.cfg.Trial.Health = func(context.Context) error { return errors.New("ill") }
	n.delivers("B")
	n.restarts()
	n.goes(30 * time.Second)
	n.delivers("bad 1")
	n.is("B", isFalse, PhaseTrial, ReasonDecodeFailed)
	n.goes(30 * time.Second)
	n.restarts()
	if n.active.Config != "A" {
		t.Errorf("runs %q", n.active.Config)
	}
}
