// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
)

// The tests of this file are about faults that this package once had.

// TestTyposDontForgetACrashLoop: four rejections at the door made a build try
// once more the payload that had ended the process.
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
	for i := range 2 * rollout.MaxRejected {
		n.delivers(fmt.Sprint("bad ", i))
	}
	n.delivers("X")
	n.goes(time.Hour)
	n.runs()
	n.is("A", isFalse, PhaseGood, ReasonCrashLoop)
}

// TestUnreadableSlotsAreNotWrittenOver: a slot that could not be read was taken
// for damaged, and overwritten with the older one or set aside, with the promotion
// that it held. In the meantime the other slot serves, if it can be read.
func TestUnreadableSlotsAreNotWrittenOver(t *testing.T) {
	newest, older := slotstore.SlotA, slotstore.SlotB
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		for name, test := range map[string]struct {
			unreadable []string
			runs       string
			phase      Phase
		}{
			"the newest": {[]string{newest}, "A", PhaseDegraded},
			"the older":  {[]string{older}, "B", PhaseGood},
			"both":       {[]string{newest, older}, "default", PhaseDefault},
		} {
			t.Run(fmt.Sprint(errno, ", ", name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := proven(t, "A")
					n.delivers("B")
					n.restarts()
					n.goes(DefaultSoak)
					n.kill()
					if a, b := gen(n.disk, newest), gen(n.disk, older); a != b+1 {
						t.Fatalf("the generations are %d and %d", a, b)
					}
					for _, slot := range test.unreadable {
						n.disk.SetUnreadable(slot, errno)
					}
					before := n.disk.Changes()
					n.start()
					n.is(test.runs, isFalse, test.phase, ReasonStoreFailed)
					n.delivers("C")
					n.goes(24 * time.Hour)
					n.runs()
					if n.disk.Changes() != before {
						t.Error("the store was written")
					}
					for _, slot := range test.unreadable {
						n.disk.SetUnreadable(slot, nil)
					}
					n.delivers("B")
					n.goes(storeRetry().Cap)
					if test.runs != "B" {
						n.restarts()
					}
					n.is("B", isTrue, PhaseGood, ReasonGood)
				})
			})
		}
	}
}

// gen returns the generation in a slot.
func gen(disk *slottest.Disk, name string) uint64 {
	data, _ := disk.Data(name)
	record, err := slotstore.DecodeSlot(data)
	if err != nil {
		panic(err)
	}
	return slottest.Generation(record)
}

// TestUnreadablePayloadIsNotDamaged: a payload that could not be read for want of
// a file descriptor was taken for damaged. It runs as soon as it can be read, and
// until then nothing is written and the process is not restarted.
func TestUnreadablePayloadIsNotDamaged(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EACCES, syscall.ESTALE, syscall.ETIMEDOUT} {
		t.Run(errno.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := proven(t, "A")
				n.kill()
				n.disk.SetUnreadable(slotstore.PayloadPath(ref("A").Digest), errno)
				before := n.disk.Changes()
				n.start()
				n.is("default", isFalse, PhaseDegraded, ReasonStoreFailed)
				n.delivers("A")
				n.goes(24 * time.Hour)
				n.runs()
				if n.disk.Changes() != before {
					t.Error("the store was written")
				}
				n.disk.SetUnreadable(slotstore.PayloadPath(ref("A").Digest), nil)
				n.goes(storeRetry().Cap)
				n.restarts()
				n.is("A", isTrue, PhaseGood, ReasonGood)
			})
		})
	}
}

// TestPayloadThatBecameDamaged: a payload that could not be read turns out to be damaged, and
// the last delivery repairs it.
func TestPayloadThatBecameDamaged(t *testing.T) {
	synctest.Test(t, testPayloadThatBecameDamaged)
}
func testPayloadThatBecameDamaged(t *testing.T) {
	n := proven(t, "A")
	n.kill()
	path := slotstore.PayloadPath(ref("A").Digest)
	n.disk.SetUnreadable(path, syscall.ESTALE)
	n.start()
	n.delivers("A")
	n.disk.Put(path, []byte("rot"))
	n.disk.SetUnreadable(path, nil)
	n.goes(storeRetry().Cap)
	n.restarts()
	n.is("A", isTrue, PhaseGood, ReasonGood)
}

// TestARecordThatComesLate: a payload that was delivered while the newest record could not
// be read was compared with an older one, or with none. If nothing was to do then, the
// configuration of the newest record ran later, against the source.
func TestARecordThatComesLate(t *testing.T) {
	newest, older := slotstore.SlotA, slotstore.SlotB
	for name, test := range map[string]struct {
		unreadable []string
		delivered  string
		runs       string
	}{
		"an older record": {[]string{newest}, "A", "A"},
		"no record":       {[]string{newest, older}, "", "default"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := proven(t, "A")
				n.delivers("B")
				n.kill()
				if a, b := gen(n.disk, newest), gen(n.disk, older); a != b+1 {
					t.Fatalf("the generations are %d and %d", a, b)
				}
				var applied []string
				n.cfg.Apply = func(_ context.Context, a Active[string]) error {
					n.active, applied = a, append(applied, a.Config)
					return nil
				}
				for _, slot := range test.unreadable {
					n.disk.SetUnreadable(slot, syscall.EMFILE)
				}
				n.start()
				n.delivers(test.delivered)
				for _, slot := range test.unreadable {
					n.disk.SetUnreadable(slot, nil)
				}
				n.goes(storeRetry().Cap)
				n.runs()
				if s := n.c.Status(); n.active.Config != test.runs || !s.OK || len(applied) > 0 {
					t.Errorf("runs %q, and %q was applied: %+v", n.active.Config, applied, s)
				}
			})
		})
	}
}

// TestALastKnownGoodThatCanNotBeReadIsTriedAgain: the built-in default ran in its place until
// the next restart.
func TestALastKnownGoodThatCanNotBeReadIsTriedAgain(t *testing.T) {
	for name, hot := range map[string]bool{"restart": false, "Apply": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testLastKnownGoodIsTriedAgain(t, hot) })
		})
	}
}

func testLastKnownGoodIsTriedAgain(t *testing.T, hot bool) {
	n := proven(t, "A")
	if n.stop(nil); hot {
		n.cfg.Apply = func(_ context.Context, a Active[string]) error {
			n.active = a
			return nil
		}
	}
	restarts := func() {
		if synctest.Wait(); !hot {
			n.restarts()
		}
	}
	n.start()
	n.delivers("B")
	restarts()
	path := slotstore.PayloadPath(ref("A").Digest)
	n.disk.SetUnreadable(path, syscall.EMFILE)
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	restarts()
	n.is("default", isFalse, PhaseRolledBack, ReasonUnhealthy)
	if s := n.c.Status(); !strings.Contains(s.Message, "too many open files") {
		t.Error(s.Message)
	}
	n.goes(time.Hour)
	n.runs()
	n.disk.SetUnreadable(path, nil)
	n.goes(storeRetry().Cap)
	restarts()
	n.is("A", isFalse, PhaseRolledBack, ReasonUnhealthy)
	if s := n.c.Status(); strings.Contains(s.Message, "too many open files") {
		t.Error(s.Message)
	}
	n.goes(time.Hour)
	n.runs()
}

// TestALastKnownGoodThatIsDamagedAfterAll: what could not be read is damaged, so there is
// nothing to wait for.
func TestALastKnownGoodThatIsDamagedAfterAll(t *testing.T) {
	synctest.Test(t, testLastKnownGoodThatIsDamaged)
}

func testLastKnownGoodThatIsDamaged(t *testing.T) {
	n := proven(t, "A")
	n.delivers("B")
	n.restarts()
	path := slotstore.PayloadPath(ref("A").Digest)
	n.disk.SetUnreadable(path, syscall.EMFILE)
	if err := n.c.Verdict(errors.New("ill")); err != nil {
		t.Fatal(err)
	}
	n.restarts()
	n.spoil("A")
	n.disk.SetUnreadable(path, nil)
	n.goes(storeRetry().Cap)
	n.is("default", isFalse, PhaseRolledBack, ReasonUnhealthy)
	if s := n.c.Status(); strings.Contains(s.Message, "too many open files") {
		t.Error(s.Message)
	}
	before := n.disk.Changes()
	n.goes(24 * time.Hour)
	n.runs()
	if n.disk.Changes() != before {
		t.Error("the store was written")
	}
}
