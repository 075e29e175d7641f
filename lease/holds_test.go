// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/apitest"
)

func TestALeaseIsHeldWhileNoOtherProcessCanHaveIt(t *testing.T) {
	for name, test := range map[string]struct {
		mutate func(*state)
		now    instant
		want   error
	}{
		"renewed":                      {nil, at(), nil},
		"just before it expires":       {nil, instant{since: 128*time.Second - 1, wall: 5_027_999_999}, nil},
		"expired":                      {nil, instant{since: 128 * time.Second, wall: 5_000_000_000}, errExpired},
		"resumed after a suspension":   {nil, instant{since: 95 * time.Second, wall: 5_028_000_000}, errExpired},
		"the wall clock was set back":  {nil, instant{since: 100 * time.Second, wall: 0}, nil},
		"paused":                       {func(s *state) { s.phase = PhasePaused }, at(), nil},
		"never written":                {func(s *state) { *s = *newState() }, at(), errNotHeld},
		"forgotten":                    {func(s *state) { s.forget() }, at(), errNotHeld},
		"in conflict":                  {func(s *state) { s.after(testRules(0), testTurn(), update, nil, errConflict, at()) }, at(), errNotHeld},
		"an answer is missing":         {func(s *state) { s.after(testRules(0), testTurn(), update, nil, context.DeadlineExceeded, at()) }, at(), nil},
		"deleted":                      {func(s *state) { s.after(testRules(0), testTurn(), update, nil, errNotFound, at()) }, at(), errNotHeld},
		"its Node is gone":             {func(s *state) { s.withoutNode(testRules(0), at()) }, at(), errNotHeld},
		"another's":                    {func(s *state) { s.found(testRules(0), testTurn(), stored(heldBy("other")), at()) }, at(), errForeign},
		"another's, of the same name":  {func(s *state) { s.found(testRules(0), testTurn(), stored(by("host-2/1")), at()) }, at(), errForeign},
		"read and about to be written": {func(s *state) { s.forget(); s.found(testRules(0), testTurn(), stored(), at()) }, at(), errNotHeld},
		"about to be taken": {func(s *state) {
			s.forget()
			s.found(testRules(ForeignTakeOver), testTurn(), stored(heldBy("other")), at())
		}, at(), errNotHeld},
		"contended":                     {func(s *state) { s.inTrouble().contended = true }, at(), errContended},
		"stored although it timed out":  {lostAnswer, at(), nil},
		"stored, and counted from then": {lostAnswer, instant{since: 137 * time.Second, wall: 5_037_000_000}, errExpired},
	} {
		t.Run(name, func(t *testing.T) {
			s := heldState()
			if test.mutate != nil {
				test.mutate(s)
			}
			if got := s.holds(testRules(0), test.now); !errors.Is(got, test.want) {
				t.Errorf("holds = %v, want %v", got, test.want)
			}
		})
	}
}

// lostAnswer has a write that was sent after 99 s be found by a read.
func lostAnswer(s *state) {
	s.mayBeStored(&turn{renewTime: 4_999_000_000, sent: instant{since: 99 * time.Second, wall: 4_999_000_000}})
	s.version = ""
	s.found(testRules(0), testTurn(), stored(renewedAt(4_999_000_000), by("host/2")), at())
}

// by names the process that holds the lease.
func by(process string) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Annotations = map[string]string{processAnnotation: process} }
}

func TestWhoseLeaseItIs(t *testing.T) {
	for name, test := range map[string]struct {
		state *state
		lease *coordinationv1.Lease
		want  bool
	}{
		"of no process":                         {newState(), stored(), false},
		"of no process, and we had it":          {heldState(), stored(), false},
		"ours":                                  {heldState(), stored(by("host/2")), false},
		"ours before a restart":                 {newState(), stored(by("host/1")), false},
		"of a later start of ours":              {heldState(), stored(by("host/3")), true},
		"of another process":                    {newState(), stored(by("other/2")), true},
		"of another process, and we had it":     {heldState(), stored(by("other/2")), true},
		"of an earlier start, before our time":  {heldState(), stored(by("host/1"), renewedAt(1)), false}, // a backup was restored
		"of another process, before our time":   {heldState(), stored(by("other/2"), renewedAt(1)), false},
		"an older one of another object":        {heldState(), stored(by("other/2"), renewedAt(1), func(l *coordinationv1.Lease) { l.UID = "another" }), true},
		"an older one of another holder":        {heldState(), stored(heldBy("other"), renewedAt(1)), true},
		"of another process that gave it up":    {newState(), stored(by("other/2"), heldBy("")), false},
		"of another holder":                     {newState(), stored(heldBy("other"), by("host/2")), true},
		"of a process without a start":          {newState(), stored(by("other")), true},
		"of a process with slashes in its name": {newState(), stored(by("a/host/2")), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.state.isForeign(testTurn(), test.lease); got != test.want {
				t.Errorf("isForeign = %v, want %v", got, test.want)
			}
		})
	}
}

// A cut is a network cable: while it is cut requests are neither sent nor
// answered.
type cut struct {
	mu   sync.Mutex
	open chan struct{}
}

func newCut() *cut {
	c := &cut{open: make(chan struct{})}
	close(c.open)
	return c
}

func (c *cut) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = make(chan struct{})
}

func (c *cut) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.open)
}

func (c *cut) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		c.mu.Lock()
		open := c.open
		c.mu.Unlock()
		select {
		case <-open:
			return next.RoundTrip(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	})
}

// process starts a second controller for the same node, as a process of its own.
func (f *fixture) process(name string, mutate func(*Config)) (c *Controller, stop func()) {
	f.Helper()
	cfg := f.controller.cfg
	cfg.Process, cfg.Hooks, cfg.EventRecorder = name, Hooks{}, nil
	if mutate != nil {
		mutate(&cfg)
	}
	c = f.new(cfg)
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	return c, func() { cancel(); <-done }
}

func holds(c *Controller) bool { return c.Holds(context.Background(), nodeName) == nil }

func TestOfTwoProcessesWithOneNameOneHoldsTheLease(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	var waiting record
	bubble(t, func(_ *fixture, cfg *Config) { cfg.Process = "host-1" }, func(f *fixture) {
		f.start()
		second, stopSecond := f.process("host-2", func(cfg *Config) { cfg.EventRecorder, cfg.Hooks = recorder, waiting.hooks() })
		for range 360 {
			pass(10 * time.Second)
			if !holds(f.controller) || holds(second) {
				t.Fatalf("first holds: %v, second holds: %v", holds(f.controller), holds(second))
			}
		}
		err := second.Holds(context.Background(), nodeName)
		held, ok := errors.AsType[*NotHeldError](err)
		if !ok || !errors.Is(err, ErrNotHeld) || held.NodeName != nodeName || held.Holder != nodeName || held.Process != "host-1" {
			t.Errorf("Holds = %v", err)
		}
		if want := `lease: lease of node "node-1" is not held: held by another process: "node-1" (process "host-1")`; err.Error() != want {
			t.Errorf("Holds says %q, want %q", err, want)
		}
		if s, _ := second.Status(nodeName); s.Phase != PhaseForeign || s.Holder != nodeName || s.Process != "host-1" {
			t.Errorf("status of the second is %+v", s)
		}
		if n := len(f.server.Requests(puts)); n != 360 {
			t.Errorf("%d renewals in an hour, want those of the first only", n)
		}
		f.stop()
		gone := time.Now()
		for !holds(second) {
			pass(100 * time.Millisecond)
			if holds(f.controller) {
				t.Fatal("a controller that has stopped holds its lease")
			}
		}
		if took := time.Since(gone); took < 30*time.Second || took > 41*time.Second {
			t.Errorf("the second has it %v after the end of the first, want the rest of its 40 s", took)
		}
		if got := waiting.phases; !slices.Equal(got, []Phase{PhaseForeign, PhaseHeld}) {
			t.Errorf("phases of the second are %v: it says that it waits, once", got)
		}
		if len(waiting.takenOver) != 1 || waiting.takenOver[0] != (TakenOver{NodeName: nodeName, Holder: nodeName, Process: "host-1"}) {
			t.Errorf("TakenOver: %+v", waiting.takenOver)
		}
		if l := f.lease(); *l.Spec.HolderIdentity != nodeName || *l.Spec.LeaseTransitions != 1 || !strings.HasPrefix(l.Annotations[processAnnotation], "host-2/") {
			t.Errorf("lease is %+v", l)
		}
		stopSecond()
	})
	if got := drain(recorder); got != "LeaseHeldByOther LeaseTakenOver" {
		t.Errorf("events are %q", got)
	}
}

// A process that is cut off knows the end by its own clock, and sooner than the
// other one acts.
func TestAProcessThatIsCutOffKnowsBeforeItIsReplaced(t *testing.T) {
	cable := newCut()
	bubble(t, func(f *fixture, cfg *Config) {
		cfg.Process = "host-1"
		config := f.server.Config(apitest.NodeUser(nodeName))
		config.Wrap(cable.wrap)
		cfg.Client = kubernetes.NewForConfigOrDie(config).CoordinationV1()
	}, func(f *fixture) {
		f.start()
		second, stopSecond := f.process("host-2", func(cfg *Config) { cfg.Client = f.server.Client(apitest.NodeUser(nodeName)).CoordinationV1() })
		defer stopSecond()
		pass(95 * time.Second)
		cable.cut()
		both := func() {
			if holds(f.controller) && holds(second) {
				t.Fatal("both hold the lease")
			}
		}
		begin, lost := time.Now(), time.Duration(0)
		for !holds(second) {
			pass(100 * time.Millisecond)
			both()
			if lost == 0 && !holds(f.controller) {
				lost = time.Since(begin)
			}
		}
		if lost < 28*time.Second || lost > 38*time.Second {
			t.Errorf("the first gave up %v after it was cut off, want 38 s after its last renewal", lost)
		}
		writes := len(f.server.Requests(puts))
		cable.mend()
		for range 600 {
			pass(100 * time.Millisecond)
			both()
			if !holds(second) {
				t.Fatal("the second has lost the lease to one that was cut off")
			}
		}
		if n := len(f.server.Requests(puts)) - writes; n > 8 {
			t.Errorf("%d writes in the minute after: both write", n)
		}
		f.wantPhase(PhaseForeign)
		if len(f.told.contended) > 0 {
			t.Errorf("Contended: %+v", f.told.contended)
		}
	})
}

func TestARestartGoesOnWithTheLease(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) { cfg.Process = "host-1" }, func(f *fixture) {
		f.start()
		pass(15 * time.Second)
		f.stop() // and says nothing, as after kill -9
		f.server.ResetJournal()
		second, stop := f.process("host-1", nil)
		defer stop()
		f.wantCalls("GET PUT")
		if !holds(second) {
			t.Errorf("Holds = %v", second.Holds(f.Context(), nodeName))
		}
		if n := f.lease().Spec.LeaseTransitions; n != nil {
			t.Errorf("%d transitions", *n)
		}
	})
}

// Two processes that differ only in their order: an old Pod of a
// DaemonSet and its successor, or a program that was started twice.
func TestTheLaterOfTwoStartsOfOneProcessHoldsTheLease(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) { cfg.Process = "host-1" }, func(f *fixture) {
		f.start()
		pass(15 * time.Second)
		second, stop := f.process("host-1", nil)
		pass(10 * time.Second)
		f.wantPhase(PhaseForeign)
		for range 360 {
			pass(10 * time.Second)
			if holds(f.controller) || !holds(second) {
				t.Fatalf("first holds: %v, second holds: %v", holds(f.controller), holds(second))
			}
		}
		if len(f.told.contended) > 0 {
			t.Errorf("Contended: %+v", f.told.contended)
		}
		stop()
		pass(45 * time.Second)
		if !holds(f.controller) {
			t.Error("the first does not take the lease when the second is gone")
		}
	})
}

// A process that gives its lease up needs no patience of its successor.
func TestAnExpiredLeaseIsTakenAtOnce(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) { cfg.Process, cfg.OnShutdown = "host-1", ShutdownExpire }, func(f *fixture) {
		f.start()
		pass(15 * time.Second)
		f.stop()
		if _, there := f.lease().Annotations[processAnnotation]; there {
			t.Error("the lease that was given up names its process")
		}
		second, stop := f.process("host-2", nil)
		defer stop()
		if !holds(second) {
			t.Errorf("Holds = %v", second.Holds(f.Context(), nodeName))
		}
	})
}

// Another client that writes the lease without naming a process, such as a kubelet
// of the same name, does not care for ours.
func TestAContendedLeaseIsNotHeld(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	bubble(t, func(_ *fixture, cfg *Config) { cfg.EventRecorder = recorder }, func(f *fixture) {
		f.start()
		pass(time.Minute)
		for range 30 {
			f.steal(nodeName, 0)
			pass(10 * time.Second)
		}
		if len(f.told.contended) != 1 || f.told.contended[0].Holder != nodeName {
			t.Errorf("Contended: %+v, want it once", f.told.contended)
		}
		if holds(f.controller) {
			t.Error("the lease counts as held while another client writes it")
		}
		pass(2 * time.Minute)
		if f.status().Contended || !holds(f.controller) {
			t.Errorf("contended although no other client has written for two minutes: %v", f.controller.Holds(f.Context(), nodeName))
		}
	})
	if got := drain(recorder); got != "LeaseContended" {
		t.Errorf("events are %q", got)
	}
}

func TestHoldsOfANodeThatIsNotServed(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		if holds(f.controller) {
			t.Error("held before Run")
		}
		f.start()
		if !holds(f.controller) {
			t.Errorf("Holds = %v", f.controller.Holds(f.Context(), nodeName))
		}
		if err := f.controller.Holds(f.Context(), "node-2"); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Holds of another node = %v", err)
		}
		f.controller.Remove(nodeName)
		if holds(f.controller) {
			t.Error("held after Remove")
		}
	})
}
