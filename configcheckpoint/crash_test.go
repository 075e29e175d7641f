// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
)

const testAttempts = 2

// machine is one node: a disk, and the process that runs on it if one does. It
// remembers what the process was told, to hold the next one to it.
type machine struct {
	fs *crashFS
	c  *Controller[string]
	l  *loop[string]

	active   Active[string]
	last     string         // delivered last
	starts   map[string]int // on trial, since it was staged
	promoted map[Digest]bool
}

func newMachine(disk *crashFS) *machine {
	return &machine{fs: disk, starts: map[string]int{}, promoted: map[Digest]bool{}}
}

// on returns the same node with another disk, and no process.
func (m *machine) on(disk *crashFS) *machine {
	return &machine{fs: disk, last: m.last, starts: maps.Clone(m.starts), promoted: maps.Clone(m.promoted)}
}

func testCodec() Codec[string] {
	return Codec[string]{
		Decode: func(data []byte) (string, error) {
			if bytes.HasPrefix(data, []byte("bad")) {
				return "", errors.New("bad from the start")
			}
			return string(data), nil
		},
		Default: func() (string, error) { return "default", nil },
	}
}

// boot starts a process.
func (m *machine) boot() error {
	if m.fs.crashed {
		m.fs.afterCrash()
	}
	c, err := New(Config[string]{
		Dir: "/crashfs", Codec: testCodec(), Build: "test",
		Source:       SourceFunc(nil),
		Trial:        Trial{Attempts: testAttempts},
		ErrorHandler: func(context.Context, error, string) {},
	})
	if err != nil {
		return err
	}
	c.store.fs, c.bootID = m.fs, func() string { return "boot" }
	m.c = c
	m.l = &loop[string]{c: c, again: stoppedTimer(), store: stoppedTimer(), check: stoppedTimer()}
	m.fs.opening = true
	c.mu.Lock()
	c.life = booting
	_, err = c.openStore()
	c.mu.Unlock()
	m.fs.opening = false
	if errors.Is(err, ErrLocked) || errors.Is(err, ErrPermissions) {
		return err
	}
	if m.fs.off.settle {
		c.store.settled = true
	}
	found, err := c.resolve(context.Background())
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.activate(found)
	c.life = booted
	c.refresh()
	m.active = found.active
	if found.active.Trial {
		m.starts[found.active.Config]++
	}
	return nil
}

// afterCrash finds out which of the records that it may be the crash has left:
// from now on that one must not be lost.
func (m *crashFS) afterCrash() {
	m.crashed = false
	s := &store{fs: m.clone(nil)}
	if _, err := s.open(); err == nil && (m.acked == nil || s.rec.Gen >= m.acked.Gen) {
		m.acked = &s.rec
	}
}

// deliver has the source yield something; "" is nothing.
func (m *machine) deliver(text string) error {
	var data []byte
	if text != "" {
		data = []byte(text)
	}
	if a := m.c.sit.rec.Assigned; a == nil || a.Digest != DigestOf(data) {
		delete(m.starts, text)
	}
	m.last = text
	m.l.payload = Payload{Data: data, Name: "test", Version: "1"}
	m.l.retryStore(true)
	m.l.delivered(context.Background())
	if m.fs.off.keepOlder {
		m.pruneToNewest()
	}
	if s := m.c.sit.store; s != nil {
		return s
	}
	return nil
}

// pruneToNewest is the mutation of W5.
func (m *machine) pruneToNewest() {
	s := m.c.store
	older := s.slots
	s.slots = [2]*record{&s.rec, &s.rec}
	_ = s.prune()
	s.slots = older
}

func (m *machine) verdict(failure error) error {
	if failure == nil {
		m.promoted[m.active.Ref.Digest] = true
	}
	err := m.c.Verdict(failure)
	if m.fs.off.keepOlder {
		m.pruneToNewest()
	}
	if errors.Is(err, ErrNoTrial) {
		return nil
	}
	return err
}

func (m *machine) closeClean() error {
	if m.active.Trial {
		m.starts[m.active.Config]--
	}
	return m.c.Close(nil)
}

// step is one thing that happens to a machine.
type step struct {
	name string
	do   func(*machine) error
}

func boot() step { return step{"boot", (*machine).boot} }
func deliver(text string) step {
	return step{"deliver " + text, func(m *machine) error { return m.deliver(text) }}
}
func promoteNow() step {
	return step{"promote", func(m *machine) error { return m.verdict(nil) }}
}
func fail() step {
	return step{"fail", func(m *machine) error { return m.verdict(errors.New("ill")) }}
}
func closeCleanly() step { return step{"close", (*machine).closeClean} }

// life is what the crash tests live through: every kind of change, and every
// change after each other one that matters to it.
func crashLife() []step {
	return []step{
		boot(), deliver("A"), // an empty disk, the first configuration
		boot(), promoteNow(),
		deliver("B"), boot(), boot(), boot(), // a crash loop: back on A
		deliver("C"), boot(), fail(), boot(), // rolled back by a verdict
		deliver("bad"), // rejected at the door
		deliver("D"), boot(), closeCleanly(),
		boot(), promoteNow(), // the second promotion: A is previous
		deliver("E"), deliver("D"), // a newer one, and back to what is good
		deliver("F"), boot(), promoteNow(), // the third: A's payload goes
		deliver(""), boot(), // unassigned
		deliver("A"), boot(), promoteNow(),
	}
}

// run lives until the crash and returns the step it came in, or "".
func (m *machine) run(steps []step) (where string, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crashed); !ok {
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
	images, recoveries, rots, kills int
	quick                           bool // stop at the first violation
	violations                      []string
}

func (in *inspector) violated(format string, args ...any) {
	in.violations = append(in.violations, fmt.Sprintf(format, args...))
}

func (in *inspector) done() bool { return in.quick && len(in.violations) > 0 }

// crashEverywhere lives through steps once for every step of the disk, crashes
// there, and checks everything that could be left.
func (in *inspector) crashEverywhere(off mutation, steps []step) (points int) {
	for k := 1; !in.done(); k++ {
		m := newMachine(newCrashFS())
		m.fs.off, m.fs.crashAt = off, k
		where, err := m.run(steps)
		if err != nil {
			in.violated("without a crash: %v", err)
			return k
		}
		if where == "" {
			return k - 1
		}
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
	return 0
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

func TestCrashAtEveryChange(t *testing.T) {
	in := &inspector{}
	points := in.crashEverywhere(mutation{}, crashLife())
	t.Logf("%d points, %d images, %d crashes during recovery, %d kills, %d slots spoilt",
		points, in.images, in.recoveries, in.kills, in.rots)
	for i, v := range in.violations {
		if i == 20 {
			t.Fatalf("and %d more", len(in.violations)-i)
		}
		t.Error(v)
	}
	if points < 60 || in.images < 500 || in.recoveries < 500 {
		t.Errorf("the harness has lost its reach: %d points, %d images, %d recoveries", points, in.images, in.recoveries)
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
			in := &inspector{quick: true}
			in.crashEverywhere(off, crashLife())
			if len(in.violations) == 0 {
				t.Errorf("nothing noticed in %d images", in.images)
				return
			}
			t.Log(in.violations[0])
		})
	}
}
