// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// inspector checks what crashes leave, and counts.
type inspector struct {
	points, images, recoveries, rots, kills int
	quick                                   bool // stop at the first violation
	violations                              []string
}

func (in *inspector) violated(format string, args ...any) {
	in.violations = append(in.violations, fmt.Sprintf(format, args...))
}

func (in *inspector) done() bool { return in.quick && len(in.violations) > 0 }

// crashEverywhere lives through steps once for every shards-th step of the disk,
// beginning with first, crashes there, and checks everything that could be left.
func (in *inspector) crashEverywhere(off mutation, steps []step, first, shards int) {
	for k := first; !in.done(); k += shards {
		m := newMachine(newCrashFS())
		m.fs.off, m.fs.crashAt = off, k
		where, err := m.run(steps)
		if err != nil {
			in.violated("without a crash: %v", err)
			return
		}
		if where == "" {
			return
		}
		in.points++
		m.fs.crashAt = 0
		where = fmt.Sprintf("crash at change %d in %s", k, where)
		for _, i := range m.fs.powerCut(true) {
			in.images++
			in.afterPowerCut(m, i, where+", "+i.what)
		}
		for _, disk := range m.fs.killed() {
			in.kills++
			in.afterKill(m.on(disk), where+", killed")
		}
	}
}

// afterPowerCut checks one image: I1 to I7.
func (in *inspector) afterPowerCut(m *machine, i image, where string) {
	rec, ok := in.consistent(m, m.fs.boot(i), where)
	if !ok || in.done() {
		return
	}
	// I6: a crash during recovery changes nothing.
	for k := 1; ; k++ {
		again := m.on(m.fs.boot(i))
		again.fs.crashAt = k
		if at, _ := again.run([]step{boot()}); at == "" {
			break
		}
		again.fs.crashAt = 0
		for _, second := range again.fs.powerCut(false) {
			in.recoveries++
			in.consistent(again, again.fs.boot(second), fmt.Sprintf("%s, then at change %d of the boot, %s", where, k, second.what))
		}
	}
	in.rot(m, i, rec, where)
	in.crashLoops(m.on(m.fs.boot(i)), where)
	in.goesOn(m.on(m.fs.boot(i)), where)
}

// consistent checks I1, I2, I3 and I5 on a disk after a boot of the machine.
func (in *inspector) consistent(m *machine, disk *crashFS, where string) (record, bool) {
	s := &store{fs: disk, build: "test"}
	before := len(in.violations)
	damage, err := s.open()
	if err != nil || damage != nil {
		in.violated("I1: %s: open: %v, %v", where, err, damage)
		return record{}, false
	}
	acked, attempted := m.fs.acked, m.fs.attempted
	if acked != nil && s.rec.Gen < acked.Gen {
		in.violated("I2: %s: generation %d is back at %d", where, acked.Gen, s.rec.Gen)
	}
	known := slices.ContainsFunc(attempted, func(r *record) bool { return sameRecord(&s.rec, r) })
	if !known && !sameRecord(&s.rec, acked) && s.rec.Gen > 0 {
		in.violated("I2: %s: the record is neither the old nor the new one", where)
	}
	in.payloads(s, "I3: "+where)
	if s.rec.LKG != nil && !m.promoted[s.rec.LKG.Digest] {
		in.violated("I5: %s: %s is called good and never was", where, s.rec.LKG)
	}
	if err := m.on(disk).boot(); err != nil {
		in.violated("I1: %s: boot: %v", where, err)
	}
	return s.rec, len(in.violations) == before
}

func (in *inspector) payloads(s *store, where string) {
	for _, ref := range s.rec.refs() {
		if _, err := s.load(ref.Digest); err != nil {
			in.violated("%s: payload %s: %v", where, ref, err)
		}
	}
}

func sameRecord(a, b *record) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// rot checks I7: after a clean open the loss of either slot costs at most one
// generation.
func (in *inspector) rot(m *machine, i image, rec record, where string) {
	for _, name := range slotNames() {
		for _, spoil := range []func([]byte) []byte{
			func(b []byte) []byte { return make([]byte, len(b)) },
			func([]byte) []byte { return nil },
			func(b []byte) []byte { return append([]byte("x"), b[min(1, len(b)):]...) },
		} {
			in.rots++
			disk := m.fs.boot(i)
			disk.opening = true
			s := &store{fs: disk, build: "test"}
			if _, err := s.open(); err != nil {
				in.violated("I7: %s: open: %v", where, err)
				continue
			}
			disk.opening = false
			node := disk.names[disk.slot(name)]
			if node == nil {
				in.violated("I7: %s: there is no %s", where, name)
				return
			}
			node.data = spoil(bytes.Clone(node.data))
			s = &store{fs: disk, build: "test"}
			if damage, err := s.open(); err != nil || damage != nil {
				in.violated("I7: %s: %s spoilt: open: %v, %v", where, name, err, damage)
				continue
			}
			if s.rec.Gen+1 < rec.Gen {
				in.violated("I7: %s: %s spoilt: generation %d is back at %d", where, name, rec.Gen, s.rec.Gen)
			}
			in.payloads(s, fmt.Sprintf("I7: %s: %s spoilt", where, name))
		}
	}
}

// crashLoops checks I4: a configuration that never succeeds is started no more
// often than allowed, also across the crash.
func (in *inspector) crashLoops(m *machine, where string) {
	for range testAttempts + 2 {
		if err := m.boot(); err != nil {
			in.violated("I4: %s: boot: %v", where, err)
			return
		}
	}
	for text, n := range m.starts {
		if n > testAttempts {
			in.violated("I4: %s: %q was started %d times", where, text, n)
		}
	}
	if m.active.Trial {
		in.violated("I4: %s: %q is still on trial", where, m.active.Config)
	}
}

// goesOn checks that the node is not stuck: what was delivered last is run when
// it is delivered again, and so is something new.
func (in *inspector) goesOn(m *machine, where string) {
	want := m.last
	_, err := m.run([]step{boot(), deliver(want), boot()})
	if want == "" {
		want = "default"
	}
	if _, rejected := m.c.sit.rec.rejection(DigestOf([]byte(want)), "test"); err != nil || m.active.Config != want && !rejected {
		in.violated("%s: delivered %q again: runs %q, %v", where, want, m.active.Config, err)
	}
	if _, err := m.run([]step{deliver("next"), boot()}); err != nil || m.active.Config != "next" {
		in.violated("%s: delivered something new: runs %q, %v", where, m.active.Config, err)
	}
}

// afterKill goes on with the disk as the kernel has it, and lets the power fail
// at every change of the next process.
func (in *inspector) afterKill(m *machine, where string) {
	next := []step{boot(), deliver("next"), boot(), promoteNow()}
	for k := 1; !in.done(); k++ {
		then := m.on(m.fs.clone(nil))
		then.fs.crashAt = k
		at, err := then.run(next)
		if err != nil {
			in.violated("%s: %v", where, err)
			return
		}
		if at == "" {
			return
		}
		then.fs.crashAt = 0
		for _, i := range then.fs.powerCut(true) {
			in.images++
			in.consistent(then, then.fs.boot(i), fmt.Sprintf("%s, then the power fails at change %d in %s, %s", where, k, at, i.what))
		}
	}
}

// TestCrashAtEveryChange also counts what it has seen: a harness may lose its
// reach without a failure.
func TestCrashAtEveryChange(t *testing.T) {
	const shards = 4
	var all [shards]inspector
	t.Run("shards", func(t *testing.T) {
		for i := range all {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				in := &all[i]
				in.crashEverywhere(mutation{}, crashLife(), i+1, shards)
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
		in := &all[i]
		sum.points += in.points
		sum.images += in.images
		sum.recoveries += in.recoveries
		sum.kills += in.kills
		sum.rots += in.rots
	}
	t.Logf("%d points, %d images, %d crashes during recovery, %d kills, %d slots spoilt",
		sum.points, sum.images, sum.recoveries, sum.kills, sum.rots)
	if sum.points < 90 || sum.images < 20000 || sum.recoveries < 20000 || sum.kills < 100 || sum.rots < 5000 {
		t.Error("the harness has lost its reach")
	}
}

// TestEveryRuleIsNeeded switches off one rule of the store at a time. A
// harness that does not notice has shown nothing above.
func TestEveryRuleIsNeeded(t *testing.T) {
	for name, off := range map[string]mutation{
		"W1 payloads are not flushed":                  {payloadFlush: true},
		"W1 the names of payloads are not flushed":     {payloadDirFlush: true},
		"W2 commits overwrite the only slot":           {twoSlots: true},
		"W3 the names of the slots are not flushed":    {slotDirFlush: true},
		"W3 names made by another process are trusted": {settle: true},
		"W4 torn slots are not repaired":               {repair: true},
		"W5 payloads of the older slot are removed":    {keepOlder: true},
		"commits are not flushed":                      {slotFlush: true},
		"the write of a slot and its flush are apart":  {oneCall: true},
		"slots have no checksum":                       {checksum: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := &inspector{quick: true}
			in.crashEverywhere(off, crashLife(), 1, 1)
			if len(in.violations) == 0 {
				t.Errorf("nothing noticed in %d images", in.images)
				return
			}
			t.Log(in.violations[0])
		})
	}
}
