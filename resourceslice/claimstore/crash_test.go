// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/durable/crashfs"
)

// A world is a node with a driver: what a crash or a power cut leaves of it, and
// what was promised to the kubelet.
type world struct {
	disk *crashfs.FS
	hw   *hardware
	api  *cluster
	boot int
	// tidied is set if an administrator has removed the files. They prove nothing then.
	tidied bool

	// acked has the claims whose Prepare returned nil and whose Unprepare was not
	// called, with the ID that was returned. ended has those whose Unprepare
	// returned nil.
	acked map[types.UID]string
	ended map[types.UID]bool
}

func newWorld() *world {
	return &world{disk: crashfs.New(), hw: newHardware(), api: &cluster{}, acked: map[types.UID]string{}, ended: map[types.UID]bool{}}
}

// clone returns the world with another disk.
func (w *world) clone(disk *crashfs.FS) *world {
	next := &world{disk: disk, hw: w.hw.clone(), api: w.api, boot: w.boot, tidied: w.tidied, acked: map[types.UID]string{}, ended: map[types.UID]bool{}}
	for uid, id := range w.acked {
		next.acked[uid] = id
	}
	for uid := range w.ended {
		next.ended[uid] = true
	}
	return next
}

func (w *world) bootID() string { return fmt.Sprintf("boot-%d", w.boot) }

func (w *world) open() (*Store[partition], error) {
	cfg := testConfig(w.hw, w.api)
	cfg.BootID = w.bootID()
	cfg.ErrorHandler = func(context.Context, error, string) {}
	cfg.Restore = w.hw.restore
	return openOn(cfg, &mortal{w.disk})
}

// mortal is the disk of a process that dies with it. The store contains the panics
// of callbacks, and so the panic of a crash in begin; the process is dead anyway.
type mortal struct{ *crashfs.FS }

// errDead is the error of each further call of a dead process, which then does nothing:
// every effect comes after a call.
var errDead = errors.New("the process is dead")

func (m *mortal) Open() error {
	if m.CrashAt > 0 && m.Changes() >= m.CrashAt {
		return errDead
	}
	return m.FS.Open()
}

// work is the life that is interrupted: claims with and without begin, one that is
// used twice, and enough tombstones that the file is replaced.
func (w *world) work(s *Store[partition]) error {
	ctx := context.Background()
	prepare := func(claim *resourcev1.ResourceClaim, id string, f func(context.Context, func(partition) error) (partition, error)) error {
		delete(w.ended, claim.UID)
		state, err := s.Prepare(ctx, claim, f)
		if err == nil {
			w.acked[claim.UID] = state.ID
		}
		return err
	}
	unprepare := func(claim *resourcev1.ResourceClaim) error {
		delete(w.acked, claim.UID)
		err := s.Unprepare(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, claim.UID)
		if err == nil {
			w.ended[claim.UID] = true
		}
		return err
	}
	a, b, c := testClaim("a", "gpu-0"), testClaim("b", "gpu-1"), testClaim("c", "gpu-2")
	w.api.put(a)
	w.api.put(b)
	w.api.put(c)
	plain := func(context.Context, func(partition) error) (partition, error) { return partition{ID: "plain"}, nil }
	return errors.Join(
		prepare(a, "mig-a", w.hw.prepare(a, "mig-a")),
		prepare(b, "plain", plain),
		unprepare(a),
		prepare(c, "mig-c", w.hw.prepare(c, "mig-c")),
		prepare(a, "mig-a2", w.hw.prepare(a, "mig-a2")),
		unprepare(b),
	)
}

// check asserts what must hold for the process that comes next. Everything that was
// acknowledged is there, everything that was done is known, and in the end nothing
// is left.
func (w *world) check() error {
	s, err := w.open()
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if err := s.disk.log.Check(); err != nil {
		return err
	}
	recorded := map[types.UID]Phase{}
	states := map[types.UID]string{}
	for e := range s.disk.log.All() {
		claim, state, phase, err := s.decode(e)
		if err != nil {
			return fmt.Errorf("the record of %s: %w", claim, err)
		}
		recorded[claim.UID], states[claim.UID] = phase, state.ID
	}
	if lost := s.disk.takeLost(); w.boot == 1 && len(lost) > 0 {
		return fmt.Errorf("a crash of the process left damage: %q", lost)
	}
	want := Prepared
	if w.boot > 1 {
		want = Rebooted
	}
	for uid, id := range w.acked {
		if recorded[uid] != want || states[uid] != id {
			return fmt.Errorf("claim %s was prepared as %s, and is %q as %q", uid, id, recorded[uid], states[uid])
		}
	}
	for uid, phase := range recorded {
		if !w.tidied && phase == Prepared && states[uid] != "plain" && w.hw.files[uid] != states[uid] {
			return fmt.Errorf("claim %s is recorded as prepared, and is undone", uid)
		}
	}
	for uid := range w.ended {
		if phase, ok := recorded[uid]; ok {
			return fmt.Errorf("claim %s was unprepared, and is %s", uid, phase)
		}
	}
	for uid := range w.hw.files {
		if _, ok := recorded[uid]; !ok {
			return fmt.Errorf("something was done for claim %s, and nothing is recorded", uid)
		}
	}
	if err := w.sweep(s); err != nil {
		return err
	}
	if err := w.recover(s); err != nil {
		return err
	}
	if left := w.hw.left(); left != nothing {
		return fmt.Errorf("%s is left", left)
	}
	for e := range s.disk.log.All() {
		return fmt.Errorf("%s is still recorded", e.UID)
	}
	return nil
}

// deviceOf has the device of each claim that the lives prepare.
var deviceOf = map[types.UID]string{"a-uid": "gpu-0", "b-uid": "gpu-1", "c-uid": "gpu-2", "z-uid": "gpu-9"}

// sweep is what a driver does at its start with devices that no claim uses.
func (w *world) sweep(s *Store[partition]) error {
	for uid, device := range deviceOf {
		swept := false
		err := s.Sweep(context.Background(), Device{Pool: "n1", Name: device}, func(context.Context) error { swept = true; return nil })
		_, held := errors.AsType[*DeviceHeldError](err)
		switch {
		case swept && (w.hw.files[uid] != "" || w.acked[uid] != ""):
			return fmt.Errorf("the device of %s was swept", uid)
		case err != nil && !held && !errors.Is(err, ErrIncomplete), errors.Is(err, ErrIncomplete) && w.boot == 1:
			return err
		}
	}
	return nil
}

// recover is what Run does after an administrator has tidied up, and after all claims were
// deleted while the driver was away.
func (w *world) recover(s *Store[partition]) error {
	clear(w.hw.files)
	w.tidied = true
	err := s.pass(context.Background(), at(time.Unix(0, 0)), newSightings())
	if err != nil { // as Run does
		err = s.pass(context.Background(), at(time.Unix(0, 0)), newSightings())
	}
	if err != nil {
		return fmt.Errorf("pass: %w", err)
	}
	for e := range s.disk.log.All() {
		claim, _, phase, _ := s.decode(e)
		if phase == Prepared && w.api.claims[claim.Name] != nil && w.hw.files[claim.UID] == "" {
			return fmt.Errorf("the file of %s was not restored", claim)
		}
	}
	seen := newSightings()
	s.cfg.Claims = &cluster{}
	for i := range 2 {
		if err := s.pass(context.Background(), at(time.Unix(0, 0).Add(time.Duration(i)*s.cfg.Interval)), seen); err != nil {
			return fmt.Errorf("pass: %w", err)
		}
	}
	return nil
}

// checkAll asserts what must hold for the process that comes next, and for the one
// after it if the next one is killed at any change that it makes.
func (w *world) checkAll() (states int, err error) {
	for at := 1; ; at++ {
		next := w.clone(w.disk.Clone())
		next.disk.CrashAt = at
		crashed := until(func() {
			s, err := next.open()
			if err == nil {
				err = next.recover(s)
			}
			if err != nil && next.disk.Changes() >= at {
				panic(crashfs.Crashed{}) // it was contained
			}
			if err != nil {
				panic(err)
			}
		})
		if !crashed {
			return states + 1, w.check()
		}
		for _, disk := range next.disk.Killed() {
			states++
			last := next.clone(disk)
			clear(last.acked) // the first recovery may have ended them
			if err := last.check(); err != nil {
				return states, fmt.Errorf("recovery killed before change %d: %w", at, err)
			}
		}
	}
}

// until runs f up to a crash, and reports whether one came.
func until(f func()) (crashed bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crashfs.Crashed); !ok {
				panic(p)
			}
			crashed = true
		}
	}()
	f()
	return false
}

// crashes stops a life before each change of the disk, and checks each state that
// the crash of the process or a power cut could leave. It returns the first
// violation and the number of states.
func crashes(setup func(*world)) (states int, violation error) {
	for at := 1; ; at++ {
		w := newWorld()
		w.boot = 1
		setup(w)
		// The store exists already, with claims that were there before.
		w.disk.ResetCounts()
		w.disk.CrashAt = at
		var err error
		crashed := until(func() {
			var s *Store[partition]
			if s, err = w.open(); err == nil {
				err = w.work(s)
			}
			if err != nil && w.disk.Changes() >= at {
				panic(crashfs.Crashed{}) // it was contained
			}
		})
		if err != nil && !crashed {
			return states, err
		}
		for i, disk := range w.disk.Killed() {
			n, err := w.clone(disk).checkAll()
			states += n
			if err != nil {
				return states, fmt.Errorf("the process was killed before change %d (%d): %w", at, i, err)
			}
		}
		for _, image := range w.disk.PowerCut(true) {
			next := w.clone(w.disk.Boot(image))
			next.hw, next.boot = w.hw.reboot(), 2
			n, err := next.checkAll()
			states += n
			if err != nil {
				return states, fmt.Errorf("power cut before change %d: %s: %w", at, image.What, err)
			}
		}
		if !crashed {
			return states, nil
		}
	}
}

// lives are what the store was used for before the crash.
var lives = map[string]func(*world){
	"new": func(*world) {},
	"used": func(w *world) {
		s, err := w.open()
		if err != nil {
			panic(err)
		}
		z := testClaim("z", "gpu-9")
		if _, err := s.Prepare(context.Background(), z, w.hw.prepare(z, "mig-z")); err != nil {
			panic(err)
		}
		w.acked[z.UID] = "mig-z"
	},
	// The next record is written with a new file.
	"wasteful": func(w *world) {
		s, err := w.open()
		if err != nil {
			panic(err)
		}
		z := testClaim("z", "gpu-9")
		for range 100 {
			state := partition{ID: "mig-z", Extra: strings.Repeat("x", 1000)}
			if err := s.record(context.Background(), s.claimOf(z), "Prepared", state); err != nil {
				panic(err)
			}
			if s.disk.log.Wasteful() {
				break
			}
		}
		w.hw.files[z.UID], w.acked[z.UID] = "mig-z", "mig-z"
	},
}

func TestNoCrashLosesAClaim(t *testing.T) {
	for name, life := range lives {
		t.Run(name, func(t *testing.T) {
			states, violation := crashes(life)
			if violation != nil {
				t.Fatal(violation)
			}
			if states < 100 {
				t.Errorf("only %d states", states)
			}
			t.Logf("%d states", states)
		})
	}
}

// TestTheCrashTestHasReach switches off what the store relies on.
func TestTheCrashTestHasReach(t *testing.T) {
	for name, off := range map[string]crashfs.Mutation{
		"no flush of a record":   {OverwriteFlush: true},
		"no flush of a new file": {FileFlush: true},
		"errors are not seen":    {Errors: true},
	} {
		_, violation := crashes(func(w *world) {
			w.disk.Off = off
			if off.Errors {
				for step := 1; step < 40; step += 5 {
					w.disk.Fail[step] = errors.New("input/output error")
				}
			}
		})
		if violation == nil {
			t.Errorf("%s: no violation", name)
		}
		t.Logf("%s: %v", name, violation)
	}
}

// TestEveryChangeCanFail: the kubelet and the driver repeat what failed.
func TestEveryChangeCanFail(t *testing.T) {
	for at := 1; ; at++ {
		w := newWorld()
		w.boot = 1
		broken := errors.New("input/output error")
		w.disk.Fail[at] = broken
		failed := false
		for try := 0; ; try++ {
			s, err := w.open()
			if err == nil {
				err = w.work(s)
			}
			if err == nil {
				break
			}
			if !errors.Is(err, broken) || try > 0 {
				t.Fatalf("change %d: %v", at, err)
			}
			failed = true
		}
		if err := w.check(); err != nil {
			t.Fatalf("change %d failed: %v", at, err)
		}
		if !failed && at > w.disk.Changes() {
			return
		}
	}
}
