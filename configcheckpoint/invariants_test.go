// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"fmt"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
)

// Package slotstore tests that a record survives crashes. The tests here check
// the promises about configurations, at every change of the disk.

// inspector checks what crashes leave, and counts.
type inspector struct {
	points, images, kills int
	quick                 bool // stop at the first violation
	violations            []string
}

func (in *inspector) violated(format string, args ...any) {
	in.violations = append(in.violations, fmt.Sprintf(format, args...))
}

func (in *inspector) done() bool { return in.quick && len(in.violations) > 0 }

// crashEverywhere performs steps once for every shards-th change of the disk,
// beginning with first, crashes there, and checks everything that could be left.
func (in *inspector) crashEverywhere(off slottest.Rule, steps []step, first, shards int) {
	for k := first; !in.done(); k += shards {
		m := newMachine(slottest.New())
		m.fs.SwitchOff(off)
		m.fs.CrashAt = k
		where, err := m.run(steps)
		if err != nil {
			in.violated("without a crash: %v", err)
			return
		}
		if where == "" {
			return
		}
		in.points++
		m.fs.CrashAt = 0
		where = fmt.Sprintf("crash at change %d in %s", k, where)
		for _, i := range m.fs.PowerCut(true) {
			in.images++
			where := where + ", " + i.What
			in.consistent(m, m.fs.Boot(i), where)
			in.crashLoops(m.on(m.fs.Boot(i)), where)
			in.goesOn(m.on(m.fs.Boot(i)), where)
		}
		for _, disk := range m.fs.Killed() {
			in.kills++
			in.consistent(m, disk.Clone(), where+", killed")
			in.crashLoops(m.on(disk.Clone()), where+", killed")
			in.goesOn(m.on(disk), where+", killed")
		}
	}
}

// consistent checks a disk and a boot on it: Boot does not fail because of a
// crash, every payload that the record refers to is there, and only a
// configuration that ran and passed its trial is called good.
func (in *inspector) consistent(m *machine, disk *slottest.Disk, where string) {
	s := storeOn(disk)
	if damage, err := s.Open(); err != nil || damage != nil {
		in.violated("%s: open: %v, %v", where, err, damage)
		return
	}
	r := stored(s)
	if disk.Acked != nil && r.Gen < slottest.Generation(disk.Acked) {
		in.violated("%s: generation %d is back at %d", where, slottest.Generation(disk.Acked), r.Gen)
	}
	for _, ref := range r.Refs() {
		if _, err := s.Load(ref.Digest); err != nil {
			in.violated("%s: payload %s: %v", where, ref.Name, err)
		}
	}
	if r.LKG != nil && !m.promoted[Digest(r.LKG.Digest)] {
		in.violated("%s: %s is called good and never was", where, r.LKG.Name)
	}
	if err := m.on(disk).boot(); err != nil {
		in.violated("%s: boot: %v", where, err)
	}
}

// crashLoops checks that a configuration that never succeeds is started no more
// often than allowed, including the starts before the crash.
func (in *inspector) crashLoops(m *machine, where string) {
	for range testAttempts + 2 {
		if err := m.boot(); err != nil {
			in.violated("%s: boot: %v", where, err)
			return
		}
	}
	for text, n := range m.starts {
		if n > testAttempts {
			in.violated("%s: %q was started %d times", where, text, n)
		}
	}
	if m.active.Trial {
		in.violated("%s: %q is still on trial", where, m.active.Config)
	}
}

// goesOn checks that the node is not stuck: the last payload runs when it is
// delivered again, and so does a new one.
func (in *inspector) goesOn(m *machine, where string) {
	want := m.last
	_, err := m.run([]step{boot(), deliver(want), boot()})
	if want == "" {
		want = "default"
	}
	if _, rejected := m.c.core.Rejection(rollout.Digest(DigestOf([]byte(want)))); err != nil || m.active.Config != want && !rejected {
		in.violated("%s: delivered %q again: runs %q, %v", where, want, m.active.Config, err)
	}
	if _, err := m.run([]step{deliver("next"), boot()}); err != nil || m.active.Config != "next" {
		in.violated("%s: delivered something new: runs %q, %v", where, m.active.Config, err)
	}
}

// TestCrashAtEveryChange also counts: a harness can lose its reach without a
// failure.
func TestCrashAtEveryChange(t *testing.T) {
	if testing.Short() {
		t.Skip("single goroutines, in which there is no race: make unit runs it")
	}
	const shards = 4
	var all [shards]inspector
	t.Run("shards", func(t *testing.T) {
		for i := range all {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				in := &all[i]
				in.crashEverywhere("", crashLife(), i+1, shards)
				for _, v := range in.violations[:min(10, len(in.violations))] {
					t.Error(v)
				}
				if n := len(in.violations); n > 10 {
					t.Errorf("and %d more", n-10)
				}
			})
		}
	})
	var sum inspector
	for i := range all {
		sum.points += all[i].points
		sum.images += all[i].images
		sum.kills += all[i].kills
	}
	t.Logf("%d points, %d images, %d kills", sum.points, sum.images, sum.kills)
	if sum.points < 100 || sum.images < 1500 || sum.kills < 120 {
		t.Error("the harness has lost its reach")
	}
}

// TestStartsMustBeDurable shows that the harness above notices starts and
// assignments that are not on stable storage.
func TestStartsMustBeDurable(t *testing.T) {
	if testing.Short() {
		t.Skip("single goroutines, in which there is no race: make unit runs it")
	}
	for _, off := range []slottest.Rule{slottest.SlotFlush, slottest.PayloadDirFlush} {
		in := &inspector{quick: true}
		in.crashEverywhere(off, crashLife(), 1, 1)
		if len(in.violations) == 0 {
			t.Errorf("without %q: nothing noticed in %d images", off, in.images)
		}
	}
}

// sameRecord reports whether two records are encoded alike.
func sameRecord(a, b rollout.Record) bool {
	x, errX := a.Encode()
	y, errY := b.Encode()
	return errX == nil && errY == nil && string(x) == string(y)
}
