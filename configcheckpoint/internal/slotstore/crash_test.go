// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slotstore_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
	"github.com/kubewright/kubewright/internal/durable/crashfs"
)

// machine is a disk, and the process on it if one runs.
type machine struct {
	disk *slottest.Disk
	s    *slotstore.Store
	// keepNewestOnly switches off the rule "both records".
	keepNewestOnly bool
}

func (m *machine) on(disk *slottest.Disk) *machine {
	return &machine{disk: disk, keepNewestOnly: m.keepNewestOnly}
}

// open starts a process.
func (m *machine) open() error {
	if m.disk.Crashed {
		m.disk.AfterCrash(config(nil))
	}
	m.s = slotstore.New(config(m.disk))
	m.disk.Opening = true
	defer func() { m.disk.Opening = false }()
	damage, err := m.s.Open()
	if err == nil {
		err = damage
	}
	return err
}

// put commits a record with payloads, and prunes.
func (m *machine) put(texts ...string) error {
	if err := m.s.SetNote([]byte("about to commit")); err != nil {
		return err
	}
	if err := put(m.s, texts...); err != nil {
		return err
	}
	if m.keepNewestOnly {
		return m.removeOlder()
	}
	return m.s.Prune()
}

// removeOlder removes the payloads that only the older record refers to.
func (m *machine) removeOlder() error {
	info, err := parse(m.s.Record())
	if err != nil {
		return err
	}
	for _, name := range m.disk.Files() {
		digest, isPayload := strings.CutPrefix(name, slotstore.PayloadDir+"/")
		if isPayload && !slices.ContainsFunc(info.Payloads, func(d slotstore.Digest) bool { return hex.EncodeToString(d[:]) == digest }) {
			if err := m.disk.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// step is one event in the life of a machine.
type step struct {
	name string
	do   func(*machine) error
}

func open() step { return step{"open", (*machine).open} }
func commit(texts ...string) step {
	return step{"commit " + fmt.Sprint(texts), func(m *machine) error { return m.put(texts...) }}
}

// life has every kind of change, and restarts between them.
func life() []step {
	return []step{
		open(), commit("A"), // on an empty disk
		open(), commit("A"), commit("A", "B"), commit("B"),
		open(), commit("B", "C"),
		open(), commit("C"), commit("A"), // A was removed, and comes back
		open(), commit(), commit("D"), commit("D", "E", "F"),
		open(), open(), commit("F"),
	}
}

// run performs steps until the disk crashes, and returns the step it was in, or
// "".
func (m *machine) run(steps []step) (where string, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crashfs.Crashed); !ok {
				panic(p)
			}
		}
	}()
	for i, s := range steps {
		where = fmt.Sprintf("step %d (%s)", i, s.name)
		if err := s.do(m); err != nil {
			return where, fmt.Errorf("%s: %w", where, err)
		}
	}
	return "", nil
}

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

// crashEverywhere performs life once for every shards-th change of the disk,
// beginning with first, crashes there, and checks everything that could be left.
func (in *inspector) crashEverywhere(off slottest.Rule, keepNewestOnly bool, first, shards int) {
	for k := first; !in.done(); k += shards {
		m := &machine{disk: slottest.New(), keepNewestOnly: keepNewestOnly}
		m.disk.SwitchOff(off)
		m.disk.CrashAt = k
		where, err := m.run(life())
		if err != nil {
			in.violated("without a crash: %v", err)
			return
		}
		if where == "" {
			return
		}
		in.points++
		m.disk.CrashAt = 0
		where = fmt.Sprintf("crash at change %d in %s", k, where)
		for _, i := range m.disk.PowerCut(true) {
			in.images++
			in.afterPowerCut(m, i, where+", "+i.What)
		}
		for _, disk := range m.disk.Killed() {
			in.kills++
			in.afterKill(m.on(disk), where+", killed")
		}
	}
}

// afterPowerCut checks one image.
func (in *inspector) afterPowerCut(m *machine, i crashfs.Image, where string) {
	gen, ok := in.consistent(m.disk.Boot(i), where)
	if !ok || in.done() {
		return
	}
	// A crash during the recovery changes nothing.
	for k := 1; ; k++ {
		again := m.on(m.disk.Boot(i))
		again.disk.CrashAt = k
		if at, _ := again.run([]step{open()}); at == "" {
			break
		}
		again.disk.CrashAt = 0
		for _, second := range again.disk.PowerCut(false) {
			in.recoveries++
			in.consistent(again.disk.Boot(second), fmt.Sprintf("%s, then at change %d of the boot, %s", where, k, second.What))
		}
	}
	in.rot(m, i, gen, where)
	if where, err := m.on(m.disk.Boot(i)).run([]step{open(), commit("next"), open()}); err != nil {
		in.violated("%s: the store is stuck: %v", where, err)
	}
}

// consistent checks that a store opens without damage on a disk, that the record
// is an acknowledged one or a newer one, and that its payloads are there. It
// returns the generation of the record.
func (in *inspector) consistent(disk *slottest.Disk, where string) (uint64, bool) {
	before := len(in.violations)
	s := slotstore.New(config(disk))
	acked, attempted := disk.Acked, disk.Attempted
	disk.Opening = true
	damage, err := s.Open()
	disk.Opening = false
	if err != nil || damage != nil {
		in.violated("%s: open: %v, %v", where, err, damage)
		return 0, false
	}
	gen := slottest.Generation(s.Record())
	if acked != nil && gen < slottest.Generation(acked) {
		in.violated("%s: generation %d is back at %d", where, slottest.Generation(acked), gen)
	}
	known := slices.ContainsFunc(attempted, func(r []byte) bool { return bytes.Equal(s.Record(), r) })
	if !known && !bytes.Equal(s.Record(), acked) && gen > 0 {
		in.violated("%s: the record is neither the old nor the new one", where)
	}
	if err := holds(s); err != nil {
		in.violated("%s: %v", where, err)
	}
	return gen, len(in.violations) == before
}

// rot checks that the loss of either slot after a clean open costs at most one
// generation.
func (in *inspector) rot(m *machine, i crashfs.Image, gen uint64, where string) {
	for _, name := range []string{slotstore.SlotA, slotstore.SlotB} {
		for _, spoil := range []func([]byte) []byte{
			func(b []byte) []byte { return make([]byte, len(b)) },
			func([]byte) []byte { return []byte{} },
			func(b []byte) []byte { return append([]byte("x"), b[min(1, len(b)):]...) },
		} {
			in.rots++
			disk := m.disk.Boot(i)
			if err := m.on(disk).open(); err != nil {
				in.violated("%s: open: %v", where, err)
				continue
			}
			data, exists := disk.Data(name)
			if !exists {
				in.violated("%s: there is no %s", where, name)
				return
			}
			disk.Put(name, spoil(bytes.Clone(data)))
			s := slotstore.New(config(disk))
			if damage, err := s.Open(); err != nil || damage != nil {
				in.violated("%s: %s spoilt: open: %v, %v", where, name, err, damage)
				continue
			}
			if now := slottest.Generation(s.Record()); now+1 < gen {
				in.violated("%s: %s spoilt: generation %d is back at %d", where, name, gen, now)
			}
			if err := holds(s); err != nil {
				in.violated("%s: %s spoilt: %v", where, name, err)
			}
		}
	}
}

// afterKill continues with the disk as the kernel has it, and lets the power
// fail at every change of the next process.
func (in *inspector) afterKill(m *machine, where string) {
	for k := 1; !in.done(); k++ {
		then := m.on(m.disk.Clone())
		then.disk.CrashAt = k
		at, err := then.run([]step{open(), commit("next"), open(), commit("next", "last")})
		if err != nil {
			in.violated("%s: %v", where, err)
			return
		}
		if at == "" {
			return
		}
		then.disk.CrashAt = 0
		for _, i := range then.disk.PowerCut(true) {
			in.images++
			in.consistent(then.disk.Boot(i), fmt.Sprintf("%s, then the power fails at change %d in %s, %s", where, k, at, i.What))
		}
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
				in.crashEverywhere("", false, i+1, shards)
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
	if sum.points < 85 || sum.images < 40000 || sum.recoveries < 14000 || sum.kills < 95 || sum.rots < 8000 {
		t.Error("the harness has lost its reach")
	}
}

// TestEveryRuleIsNeeded switches off one rule of the package comment at a time. A
// harness that does not notice has shown nothing.
func TestEveryRuleIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("single goroutines, in which there is no race: make unit runs it")
	}
	const bothRecords slottest.Rule = "both records: the older one keeps its payloads"
	for _, off := range []slottest.Rule{
		slottest.PayloadFlush, slottest.PayloadDirFlush, slottest.TwoSlots, slottest.SlotDirFlush, slottest.TrustNames,
		slottest.Repair, bothRecords, slottest.SlotFlush, slottest.OneCall, slottest.Checksum,
	} {
		t.Run(string(off), func(t *testing.T) {
			t.Parallel()
			in := &inspector{quick: true}
			in.crashEverywhere(off, off == bothRecords, 1, 1)
			if len(in.violations) == 0 {
				t.Errorf("nothing noticed in %d images", in.images)
				return
			}
			t.Log(in.violations[0])
		})
	}
}
