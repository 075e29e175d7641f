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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/lease/internal/life"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

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
	return c, f.launch(c)
}

// launch runs a controller until stop is called.
func (f *fixture) launch(c *Controller) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	return func() { cancel(); <-done }
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
		if l := f.lease(); *l.Spec.HolderIdentity != nodeName || *l.Spec.LeaseTransitions != 1 || !strings.HasPrefix(l.Annotations[plan.ProcessAnnotation], "host-2/") {
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

// Other implementations take their own lease for another holder's.
func TestARestartGoesOnWithTheLease(t *testing.T) {
	for _, holder := range []string{"", "host-a"} {
		bubble(t, func(_ *fixture, cfg *Config) { cfg.Process, cfg.HolderIdentity = "host-1", holder }, func(f *fixture) {
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

// neighbor starts a second controller with the default Process on the same host.
func (f *fixture) neighbor(pid int, live func(pid int) bool) (c *Controller, stop func()) {
	f.Helper()
	cfg := f.controller.cfg
	cfg.Process, cfg.Hooks, cfg.EventRecorder = "", Hooks{}, nil
	c = f.new(cfg)
	c.life = kernel(pid, live)
	return c, f.launch(c)
}

// kernel is the kernel that a process sees, as its pid.
func kernel(pid int, live func(pid int) bool) *life.System {
	id := func() (string, error) { return "id", nil }
	return &life.System{Boot: id, Namespaces: id, PID: pid, Start: func(pid int) (string, error) {
		if !live(pid) {
			return "another", nil // its number is used again
		}
		return "start", nil
	}}
}

// shared lets a process have the default name.
func shared(_ *fixture, cfg *Config) { cfg.Process = "" }

// everyone lives.
func everyone(int) bool { return true }

// Two processes of one host have the same Process unless the program sets it. The second
// waits, whatever it is, and the first never notices.
func TestOfTwoProcessesOfOneHostOneHoldsTheLease(t *testing.T) {
	bubble(t, shared, func(f *fixture) {
		f.controller.life = kernel(1, everyone)
		f.start()
		pass(15 * time.Second)
		second, stop := f.neighbor(2, everyone)
		for range 360 {
			pass(10 * time.Second)
			if !holds(f.controller) || holds(second) {
				t.Fatalf("first holds: %v, second holds: %v", holds(f.controller), holds(second))
			}
		}
		err := second.Holds(f.Context(), nodeName)
		if held, ok := errors.AsType[*NotHeldError](err); !ok || held.Process != f.controller.rules.Process.String() {
			t.Errorf("Holds = %v, want one that tells the other from this process", err)
		}
		stop()
		if !holds(f.controller) {
			t.Error("the first lost its lease to a process that ended")
		}
	})
}

// A program that is started again takes its lease at once if it ended gracefully, or if
// its end is certain. Otherwise the next process waits as for any other process.
func TestANewProcessWaitsUntilTheEndOfTheOldOneIsCertain(t *testing.T) {
	for name, test := range map[string]struct {
		ends   bool // gracefully
		live   func(pid int) bool
		atOnce bool
	}{
		"it ended":      {true, everyone, true},
		"it was killed": {false, func(pid int) bool { return pid != 1 }, true},
		"it hangs":      {false, everyone, false},
	} {
		t.Run(name, func(t *testing.T) {
			cable := newCut()
			bubble(t, func(f *fixture, cfg *Config) {
				shared(f, cfg)
				config := f.server.Config(apitest.NodeUser(nodeName))
				config.Wrap(cable.wrap)
				cfg.Client = kubernetes.NewForConfigOrDie(config).CoordinationV1()
			}, func(f *fixture) {
				f.controller.life = kernel(1, everyone)
				f.start()
				pass(15 * time.Second)
				if test.ends {
					writes := f.lease().Spec.RenewTime
					f.stop()
					if l := f.lease(); !l.Spec.RenewTime.Equal(writes) || *l.Spec.HolderIdentity != nodeName {
						t.Errorf("the last write changed %+v", l.Spec)
					}
				} else {
					cable.cut()
				}
				cut := time.Now()
				cfg := f.controller.cfg
				f.controller.cfg.Client = f.server.Client(apitest.NodeUser(nodeName)).CoordinationV1()
				second, stop := f.neighbor(2, test.live)
				defer stop()
				f.controller.cfg.Client = cfg.Client
				if holds(second) != test.atOnce {
					t.Errorf("the second holds at once: %v, want %v", holds(second), test.atOnce)
				}
				for !holds(second) {
					pass(100 * time.Millisecond)
				}
				if waited := time.Since(cut); !test.atOnce && (waited < 30*time.Second || waited > 41*time.Second) {
					t.Errorf("the second waited %v, want some 40 s", waited)
				}
				if holds(f.controller) && !test.atOnce {
					t.Error("both hold it")
				}
				if !test.ends {
					cable.mend()
				}
			})
		})
	}
}

// A process that took the lease, and then ends because it lost a lock, gives it back.
func TestAProcessThatEndsGivesItsLeaseBack(t *testing.T) {
	bubble(t, shared, func(f *fixture) {
		f.controller.life = kernel(1, everyone)
		f.start()
		second, stop := f.neighbor(2, everyone)
		f.stop()
		pass(10 * time.Second)
		if !holds(second) {
			t.Fatal("the second does not take the lease of the first, which ended")
		}
		third, stopThird := f.neighbor(3, everyone)
		defer stopThird()
		stop()
		pass(10 * time.Second)
		if !holds(third) {
			t.Error("the third does not have the lease an interval after the end of the second")
		}
	})
}

// A process that gives its lease up needs no patience of its successor.
func TestAnExpiredLeaseIsTakenAtOnce(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) { cfg.Process, cfg.OnShutdown = "host-1", ShutdownExpire }, func(f *fixture) {
		f.start()
		pass(15 * time.Second)
		f.stop()
		if _, there := f.lease().Annotations[plan.ProcessAnnotation]; there {
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

// Another client deletes, empties or shortens the lease, or restores a backup in which the process
// that waits held it. The holder finds out with its next renewal, and acts until then.
func TestALeaseThatIsTakenFromItsHolderIsNotHeldTwice(t *testing.T) {
	for name, take := range map[string]func(f *fixture, restore func()){
		"deleted": func(f *fixture, _ func()) {
			apitest.Remove[*coordinationv1.Lease](f.server, corev1.NamespaceNodeLease, nodeName)
		},
		"shortened": func(f *fixture, _ func()) {
			f.editLease(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](1) })
		},
		"emptied":  func(f *fixture, _ func()) { f.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }) },
		"restored": func(_ *fixture, restore func()) { restore() },
	} {
		t.Run(name, func(t *testing.T) {
			var closed atomic.Bool
			bubble(t, func(_ *fixture, cfg *Config) {
				cfg.Process = "host-1"
				cfg.Gate = func(context.Context, string) error {
					if closed.Load() {
						return errors.New("closed")
					}
					return nil
				}
			}, func(f *fixture) {
				f.start()
				second, stop := f.process("host-2", func(cfg *Config) { cfg.Gate = nil })
				defer stop()
				pass(15 * time.Second)
				restore := f.server.Backup()
				closed.Store(true)
				pass(time.Minute)
				closed.Store(false)
				pass(15 * time.Second)
				if holds(f.controller) || !holds(second) {
					t.Fatalf("first holds: %v, second holds: %v", holds(f.controller), holds(second))
				}
				for i := range 10 { // at different times between their requests
					pass(time.Duration(i) * time.Second)
					take(f, restore)
					f.controller.Trigger(nodeName) // it looks now
					for range 413 {
						pass(100 * time.Millisecond)
						if holds(f.controller) && holds(second) {
							t.Fatal("both hold the lease")
						}
					}
					if !holds(second) {
						t.Fatal("the holder has lost the lease to one that waits")
					}
				}
			})
		})
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
