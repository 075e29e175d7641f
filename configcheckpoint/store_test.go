// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestErrorAtEveryChange lets each change of the disk fail once, with each
// error: it surfaces, what was acknowledged stays, and the node goes on.
func TestErrorAtEveryChange(t *testing.T) {
	for _, errno := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		in := &inspector{}
		points := in.errorEverywhere(mutation{}, errno)
		t.Logf("%v: %d points", errno, points)
		for _, v := range in.violations[:min(10, len(in.violations))] {
			t.Errorf("%v: %s", errno, v)
		}
	}
	in := &inspector{quick: true}
	in.errorEverywhere(mutation{errors: true}, syscall.EIO)
	if len(in.violations) == 0 {
		t.Error("W6: that errors are swallowed was not noticed")
	}
}

// errorEverywhere lives once for every change of the disk, which fails.
func (in *inspector) errorEverywhere(off mutation, errno error) (points int) {
	for k := 1; !in.done(); k++ {
		m := newMachine(newCrashFS())
		m.fs.off = off
		m.fs.fail[k] = errno
		where := ""
		for i, s := range crashLife() {
			before := m.fs.steps
			err := s.do(m)
			if before < k && m.fs.steps >= k {
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
	if reason := storeReason(err); err != nil && !transientStore(reason) {
		in.violated("%s: reported as %s: %v", where, reason, err)
	}
	// A repair or a removal that fails prevents nothing; all else must be seen.
	if err == nil && m.c.sit.store == nil && m.c.untidy == nil && !m.c.store.settled {
		in.violated("%s: nobody was told", where)
	}
	if in.consistent(m, m.fs.clone(nil), where); in.done() {
		return
	}
	for _, i := range m.fs.powerCut(true) {
		in.consistent(m, m.fs.boot(i), where+", then the power fails, "+i.what)
	}
	in.goesOn(m.on(m.fs.clone(nil)), where)
	in.crashLoops(m.on(m.fs.clone(nil)), where)
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
			m := newMachine(newCrashFS())
			if where, err := m.run(life); err != nil {
				t.Fatal(where, err)
			}
			for k := range 10000 {
				m.fs.fail[m.fs.steps+1+k] = errno
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
	m := newMachine(newCrashFS())
	count := func(what string, flushes, changes int, steps ...step) {
		t.Helper()
		m.fs.calls, m.fs.steps = map[string]int{}, 0
		if where, err := m.run(steps); err != nil {
			t.Fatal(what, where, err)
		}
		if m.fs.calls["flush"] != flushes || m.fs.steps != changes {
			t.Errorf("%s: %d flushes in %d changes, want %d in %d: %v", what, m.fs.calls["flush"], m.fs.steps, flushes, changes, m.fs.calls)
		}
	}
	// Two slots and two directories are flushed.
	count("the first boot", 4, 10, boot())
	// Of the payload: create, write, flush, rename, flush. Of the slot: write,
	// flush, which are one system call.
	count("stage", 3, 7, deliver("A"))
	count("a start on trial", 1, 2, boot())
	count("promote", 1, 2, promoteNow())
	count("a steady boot", 0, 0, boot())
	count("the same payload again", 0, 0, deliver("A"))
	count("stage another", 3, 7, deliver("B"))
	count("a newer one", 3, 7, deliver("B2"))
	count("its start", 1, 2, boot())
	count("roll back", 1, 2, fail())
	count("a boot after a roll-back", 0, 0, boot())
	count("what was rejected, delivered again", 0, 0, deliver("B2"))
	count("reject at the door", 1, 2, deliver("bad"))
	count("the same again", 0, 0, deliver("bad"))
	count("back to what is good", 1, 3, deliver("A")) // and a payload removed
	count("a boot of it", 0, 0, boot())
	count("nothing assigned", 1, 3, deliver(""))
	count("a boot of nothing", 0, 0, boot())
}

// TestThousandUpdatesLeaveBoundedStore: e2e_node's stress of 100 updates
// exposed leaks.
func TestThousandUpdatesLeaveBoundedStore(t *testing.T) {
	m := newMachine(newCrashFS())
	if err := m.boot(); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if _, err := m.run([]step{deliver(fmt.Sprint("config ", i)), boot(), promoteNow()}); err != nil {
			t.Fatal(err)
		}
	}
	names, err := m.fs.readDir(payloadDir)
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
		name := tidy(strings.Repeat(worst, 300), maxName)
		ref := func(n byte) *Ref {
			return &Ref{
				Digest: DigestOf([]byte{n}), Name: name, Version: tidy(strings.Repeat(worst, 200), maxVersion),
				Size: MaxPayloadSize, Time: time.Date(2026, 11, 20, 23, 59, 59, 123456789, time.FixedZone("", -7*3600)),
			}
		}
		build := tidy(strings.Repeat(worst, 200), maxBuild)
		r := record{
			Schema: 1000, MinReader: 1, Gen: 1<<64 - 1, Build: build,
			Assigned: ref(1), LKG: ref(2), Previous: ref(3), Healed: 1 << 30,
			Trial: &trialRecord{
				Digest: ref(1).Digest, Build: build, Failed: 1 << 30, Rebooted: 1 << 30, Open: true,
				BootID: strings.Repeat("x", 64), Note: tidy(strings.Repeat(worst, 300), maxMessage),
			},
		}
		for n := range byte(2 * maxRejected) {
			trial := r.Trial
			r = reject(r, rejection{
				Digest: DigestOf([]byte{100 + n}), Build: build, Reason: ReasonCheckpointCorrupt,
				Message: strings.Repeat(worst, 300), Time: ref(1).Time,
			})
			r.Trial = trial
		}
		slot, err := encodeSlot(r)
		if err != nil {
			t.Errorf("%q: %v", worst, err)
			continue
		}
		got, err := decodeSlot(slot)
		if err != nil || !sameRecord(&got, &r) {
			t.Errorf("%q: came back as %+v, %v", worst, got, err)
		}
	}
}

// TestNoDecisionByFileTimes is W7: no code of the package reads a file's times.
func TestNoDecisionByFileTimes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, banned := range []string{"ModTime", "Mtim", "Chtimes"} {
			if slices.Contains(identifiers(t, name), banned) {
				t.Errorf("%s uses %s", name, banned)
			}
		}
	}
}

func TestSlotRejectsDamage(t *testing.T) {
	good, err := encodeSlot(record{Schema: 1, MinReader: 1, Gen: 7, Build: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := decodeSlot(good); err != nil || r.Gen != 7 {
		t.Fatal(r, err)
	}
	end := slices.Index(good[80:], '\n') + 80 // of the JSON
	for i := range end {
		damaged := slices.Clone(good)
		damaged[i] ^= 0x01
		if r, err := decodeSlot(damaged); err == nil {
			t.Errorf("byte %d damaged: %+v", i, r)
		}
	}
	for _, length := range []int{0, 1, 100, slotSize - 1, slotSize + 1} {
		if _, err := decodeSlot(append(slices.Clone(good), 0)[:length]); err == nil {
			t.Errorf("cut to %d bytes: no error", length)
		}
	}
	if _, err := decodeSlot(make([]byte, slotSize)); !errors.Is(err, errBlankSlot) {
		t.Errorf("zeros: %v", err)
	}
	for _, bad := range []record{
		{Schema: 0, MinReader: 1},
		{Schema: 1, MinReader: 1, Assigned: &Ref{}},
		{Schema: 1, MinReader: 1, Trial: &trialRecord{}},
		{Schema: 1, MinReader: 1, Rejected: make([]rejection, maxRejected+1)},
	} {
		slot, err := encodeSlot(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeSlot(slot); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}
