// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
)

// TestErrorAtEveryChange lets each change of the disk fail once, with each
// error: it surfaces, the acknowledged state stays, and the node goes on.
func TestErrorAtEveryChange(t *testing.T) {
	errnos := []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS}
	if testing.Short() {
		errnos = errnos[:1]
	}
	for _, errno := range errnos {
		in := &inspector{}
		points := in.errorEverywhere("", errno)
		t.Logf("%v: %d points", errno, points)
		for _, v := range in.violations[:min(10, len(in.violations))] {
			t.Errorf("%v: %s", errno, v)
		}
	}
	in := &inspector{quick: true}
	in.errorEverywhere(slottest.Errors, syscall.EIO)
	if len(in.violations) == 0 {
		t.Error("swallowed errors were not noticed")
	}
}

// errorEverywhere lives once for every change of the disk, which fails.
func (in *inspector) errorEverywhere(off slottest.Rule, errno error) (points int) {
	for k := 1; !in.done(); k++ {
		m := newMachine(slottest.New())
		m.fs.SwitchOff(off)
		m.fs.Fail[k] = errno
		where := ""
		for i, s := range crashLife() {
			before := m.fs.Changes()
			err := s.do(m)
			if before < k && m.fs.Changes() >= k {
				where = fmt.Sprintf("%v at change %d in step %d (%s)", errno, k, i, s.name)
				in.afterError(m, err, where)
				break
			}
			if err != nil {
				in.violated("without an error of the disk: step %d (%s): %v", i, s.name, err)
				return k
			}
		}
		if where == "" {
			return k - 1
		}
	}
	return 0
}

// afterError checks a machine one change of whose disk has failed.
func (in *inspector) afterError(m *machine, err error, where string) {
	if reason := storeReason(err); err != nil && !rollout.Reason(reason).Transient() {
		in.violated("%s: reported as %s: %v", where, reason, err)
	}
	if err == nil && m.c.state.store == nil && m.c.state.refused == nil && m.c.pruneErr == nil {
		in.violated("%s: not reported", where)
	}
	if in.consistent(m, m.fs.Clone(), where); in.done() {
		return
	}
	for _, i := range m.fs.PowerCut(true) {
		in.consistent(m, m.fs.Boot(i), where+", then the power fails, "+i.What)
	}
	in.goesOn(m.on(m.fs.Clone()), where)
	in.crashLoops(m.on(m.fs.Clone()), where)
	if m.c.life == closed {
		return
	}
	// The same process goes on as well.
	if err := m.deliver("again"); err != nil {
		in.violated("%s: then delivered: %v", where, err)
		return
	}
	if err := m.boot(); err != nil || m.active.Config != "again" {
		in.violated("%s: then delivered and booted: runs %q, %v", where, m.active.Config, err)
	}
}

// TestDeadDisk lets every change fail from some moment on: no boot fails, and
// nothing unproven is ever started.
func TestDeadDisk(t *testing.T) {
	for _, errno := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		for _, life := range [][]step{
			{},
			{boot()},
			{boot(), deliver("A")},
			{boot(), deliver("A"), boot(), promoteNow()},
			{boot(), deliver("A"), boot(), promoteNow(), deliver("B")},
			{boot(), deliver("A"), boot(), promoteNow(), deliver("B"), boot()},
		} {
			m := newMachine(slottest.New())
			if where, err := m.run(life); err != nil {
				t.Fatal(where, err)
			}
			for k := range 10000 {
				m.fs.Fail[m.fs.Changes()+1+k] = errno
			}
			for range 5 {
				if err := m.boot(); err != nil {
					t.Errorf("%v after %d steps: boot: %v", errno, len(life), err)
				}
				if m.active.Trial {
					t.Errorf("%v after %d steps: started %q, which could not be recorded", errno, len(life), m.active.Config)
				}
				if err := m.deliver("C"); err == nil {
					t.Errorf("%v after %d steps: a payload was accepted", errno, len(life))
				}
			}
		}
	}
}

// TestFlushesAreCounted holds the store to its costs.
func TestFlushesAreCounted(t *testing.T) {
	m := newMachine(slottest.New())
	count := func(what string, flushes, changes int, steps ...step) {
		t.Helper()
		m.fs.ResetCounts()
		if where, err := m.run(steps); err != nil {
			t.Fatal(what, where, err)
		}
		if m.fs.Calls["flush"] != flushes || m.fs.Changes() != changes {
			t.Errorf("%s: %d flushes in %d changes, want %d in %d: %v", what, m.fs.Calls["flush"], m.fs.Changes(), flushes, changes, m.fs.Calls)
		}
	}
	// Two slots and two directories are flushed, the note is not.
	count("the first boot", 4, 12, boot())
	// Of the note: two writes, around the inspection. Of the payload: create,
	// write, flush, rename, flush. Of the slot: write, flush, which are one system
	// call.
	count("stage", 3, 9, deliver("A"))
	count("a start on trial", 1, 2, boot())
	count("promote", 1, 2, promoteNow())
	count("a steady boot", 0, 0, boot())
	count("the same payload again", 0, 0, deliver("A"))
	count("stage another", 3, 9, deliver("B"))
	count("a newer one", 3, 9, deliver("B2"))
	count("its start", 1, 2, boot())
	count("roll back", 1, 2, fail())
	count("a boot after a roll-back", 0, 0, boot())
	count("what was rejected, delivered again", 0, 0, deliver("B2"))
	count("reject before it runs", 1, 4, deliver("bad"))
	count("the same again", 0, 0, deliver("bad"))
	count("back to the good one", 1, 5, deliver("A")) // and a payload removed
	count("a boot of it", 0, 0, boot())
	count("nothing assigned", 1, 3, deliver(""))
	count("a boot of nothing", 0, 0, boot())
}

// TestThousandUpdatesLeaveBoundedStore: e2e_node's stress of 100 updates
// exposed leaks.
func TestThousandUpdatesLeaveBoundedStore(t *testing.T) {
	m := newMachine(slottest.New())
	if err := m.boot(); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if _, err := m.run([]step{deliver(fmt.Sprint("config ", i)), boot(), promoteNow()}); err != nil {
			t.Fatal(err)
		}
	}
	names, err := m.fs.ReadDir(slotstore.PayloadDir)
	// The newest and the one before, as the newer slot has them, and the one
	// that the older slot still mentions.
	if err != nil || len(names) > 3 {
		t.Errorf("%d payloads are left: %v, %v", len(names), names, err)
	}
	if m.active.Config != "config 999" {
		t.Errorf("runs %q", m.active.Config)
	}
}

// TestLargestRecordFitsSlot fills every field of a record with what takes most
// room.
func TestLargestRecordFitsSlot(t *testing.T) {
	for _, worst := range []string{`"`, `\`, "ÿ", "<", "\u2028", "\x00", "\xff", "日"} {
		name := rollout.Tidy(strings.Repeat(worst, 300), rollout.MaxName)
		ref := func(n byte) *rollout.Ref {
			return &rollout.Ref{
				Digest: rollout.Digest(DigestOf([]byte{n})), Name: name, Version: rollout.Tidy(strings.Repeat(worst, 200), rollout.MaxVersion),
				Size: MaxPayloadSize, Time: time.Date(2026, 11, 20, 23, 59, 59, 123456789, time.FixedZone("", -7*3600)),
			}
		}
		build := rollout.Tidy(strings.Repeat(worst, 200), rollout.MaxBuild)
		r := rollout.Record{
			Schema: 1000, MinReader: 1, Gen: 1<<64 - 1, Build: build,
			Assigned: ref(1), LKG: ref(2), Previous: ref(3),
			Trial: &rollout.Trial{
				Digest: ref(1).Digest, Build: build, Failed: 1 << 30, Rebooted: 1 << 30, Open: true,
				BootID: strings.Repeat("x", 64), Note: rollout.Tidy(strings.Repeat(worst, 300), rollout.MaxMessage),
				Others: slices.Repeat([]rollout.Starts{{Build: build, Failed: 1 << 30, Rebooted: 1 << 30}}, rollout.MaxOthers),
			},
		}
		for n := range byte(rollout.MaxRejected) {
			r.Rejected = append(r.Rejected, rollout.Rejection{
				Digest: ref(100 + n).Digest, Build: build, Reason: rollout.CheckpointCorrupt,
				Message: rollout.Tidy(strings.Repeat(worst, 300), rollout.MaxMessage), Time: ref(1).Time,
			})
		}
		slot, err := slotOf(r)
		if err != nil {
			t.Errorf("%q: %v", worst, err)
			continue
		}
		got, err := decodeSlot(slot)
		if err != nil || !sameRecord(got, r) {
			t.Errorf("%q: came back as %+v, %v", worst, got, err)
		}
	}
}

func TestRecordRejectsNonsense(t *testing.T) {
	for _, bad := range []rollout.Record{
		{Schema: 0, MinReader: 1},
		{Schema: 1, MinReader: 1, Assigned: &rollout.Ref{}},
		{Schema: 1, MinReader: 1, Trial: &rollout.Trial{}},
	} {
		slot, err := slotOf(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeSlot(slot); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}
