// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Each of these was a fault of this package, found by reading it.

// TestTyposDontForgetACrashLoop: four rejections at the door made a build try
// once more what had taken the process down.
func TestTyposDontForgetACrashLoop(t *testing.T) { synctest.Test(t, testTyposDontForgetACrashLoop) }
func testTyposDontForgetACrashLoop(t *testing.T) {
	n := proven(t, "A")
	n.delivers("X")
	n.restarts()
	for range DefaultAttempts {
		n.kill()
		n.start()
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
	n.delivers("A")
	for i := range 2 * maxRejected {
		n.delivers(fmt.Sprint("bad ", i))
	}
	n.delivers("X")
	n.goes(time.Hour)
	n.runs()
	n.is("A", isFalse, PhaseGood, ReasonCrashLoop)
}

// TestRepairsAreForgotten: the fourth repair of a configuration in its whole
// life was refused, however long it had run well since the third.
func TestRepairsAreForgotten(t *testing.T) { synctest.Test(t, testRepairsAreForgotten) }
func testRepairsAreForgotten(t *testing.T) {
	n := proven(t, "A")
	for range 2 * DefaultAttempts {
		n.kill()
		n.spoil("A")
		n.start()
		n.delivers("A")
		n.restarts()
		n.goes(DefaultSoak)
		n.is("A", isTrue, PhaseGood, ReasonGood)
	}
	commits := n.disk.calls["commit"]
	n.goes(24 * time.Hour)
	if got := n.disk.calls["commit"]; got != commits {
		t.Errorf("%d commits in a day of nothing", got-commits)
	}
}

// TestSlotsThatCanNotBeReadNow: a slot that could not be read for want of a file
// descriptor was taken for damaged, and overwritten with the older one or set
// aside.
func TestSlotsThatCanNotBeReadNow(t *testing.T) {
	for name, unreadable := range map[string][]string{"one": {slotA}, "the other": {slotB}, "both": {slotA, slotB}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := proven(t, "A")
				n.delivers("B")
				n.restarts()
				n.goes(DefaultSoak)
				n.kill()
				for _, slot := range unreadable {
					n.disk.unreadable[slot] = syscall.ENFILE
				}
				n.start()
				n.is("default", isFalse, PhaseDefault, ReasonStoreFailed)
				clear(n.disk.unreadable)
				n.goes(time.Minute) // the store is tried again
				n.restarts()
				n.is("B", isTrue, PhaseGood, ReasonGood)
			})
		})
	}
}
