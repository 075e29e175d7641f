// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

var errWaiting = errors.New("another process holds the lease")

// gate is a GateFunc that returns the error of the knob.
func gate(k *knob[error]) GateFunc {
	return func(context.Context, string) error { return k.get() }
}

func TestAClosedGateLetsAMissingNodeBeCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		closed, pods := &knob[error]{value: errWaiting}, &knob[int64]{value: 110}
		w := start(t, s, Config{Gate: gate(closed), Setters: []Setter{podsSetter(pods)}})
		w.expect(1, 0, 0)
		if _, err := w.c.OwnerReference(t.Context(), node1); err != nil {
			t.Errorf("OwnerReference = %v: a lease could never be made", err)
		}
		pods.set(50)
		w.pass(time.Hour)
		w.expect(0, 0, 0)
		if status, _ := w.c.Status(node1); !status.GateClosed || status.Phase != PhaseRegistered {
			t.Errorf("status is %+v", status)
		}
		if err := w.c.Live(t.Context(), node1); err != nil {
			t.Errorf("Live = %v: the lease could never be renewed", err)
		}
	})
}

func TestAClosedGateLetsANodeBeAdoptedButNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		node := template()
		node.Name = node1
		s.Put(node)
		closed := &knob[error]{value: errWaiting}
		var registered notes[Registered]
		var written notes[Written]
		w := start(t, s, Config{Gate: gate(closed), Hooks: Hooks{Registered: registered.add, Written: written.add}})
		w.expect(1, 1, 0)
		if _, err := w.c.OwnerReference(t.Context(), node1); err != nil {
			t.Errorf("OwnerReference = %v: a lease could never be made", err)
		}
		w.pass(time.Second)
		closed.set(nil)
		w.c.Trigger(node1)
		synctest.Wait()
		w.expect(0, 1, 1) // another process may have written in the meantime
		if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
			t.Errorf("Ready is %+v", ready)
		}
		if n := registered.get(); len(n) != 1 || n[0].Created {
			t.Errorf("Registered: %+v", n)
		}
		if n := written.get(); len(n) != 1 || n[0].Cause != CauseAdopt {
			t.Errorf("Written: %+v", n)
		}
		w.pass(10 * time.Second)
		if status, _ := w.c.Status(node1); status.GateClosed {
			t.Error("gated although the gate is open")
		}
	})
}

func TestNothingIsWrittenWhileTheGateIsClosed(t *testing.T) {
	for _, policy := range []ShutdownPolicy{ShutdownNotReady, ShutdownUnregister} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				closed, pods := &knob[error]{}, &knob[int64]{value: 110}
				w := start(t, s, Config{
					Client: s.Client(apitest.User{}).CoreV1(), Gate: gate(closed), OnShutdown: policy,
					Setters: []Setter{podsSetter(pods)},
				})
				w.pass(time.Minute)
				w.expect(1, 0, 0)
				closed.set(errWaiting)
				pods.set(50)
				w.pass(time.Hour)
				w.expect(0, 0, 0)
				// Another process writes the Node, and then leaves it to us.
				apitest.Edit(s, "", node1, func(n *corev1.Node) {
					for i := range n.Status.Conditions {
						n.Status.Conditions[i].Status = corev1.ConditionUnknown
					}
				})
				closed.set(nil)
				w.pass(10 * time.Second)
				w.expect(0, 1, 1)
				if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue || time.Since(ready.LastTransitionTime.Time) > 11*time.Second {
					t.Errorf("Ready is %+v, want True since the gate opened", ready)
				}
				if got := w.node().Status.Capacity.Pods().Value(); got != 50 {
					t.Errorf("%d pods", got)
				}
				closed.set(errWaiting)
				if err := w.stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
				w.expect(0, 0, 0)
			})
		})
	}
}

// The gate may close while the Node is read.
func TestTheGateIsAskedRightBeforeAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		closed := &knob[error]{}
		w := start(t, s, Config{Gate: gate(closed)})
		w.expect(1, 0, 0)
		s.Inject(apitest.Fault{Match: gets, Latency: 3 * time.Second, Times: 1})
		w.c.Resync(node1)
		w.pass(time.Second)
		closed.set(errWaiting)
		w.pass(time.Minute)
		w.expect(0, 1, 0)
		closed.set(nil)
		w.pass(10 * time.Second)
		w.expect(0, 1, 1) // the whole status, as it was asked for
	})
}

// Gates that hang silence no other node, and what a well node says stays true. A node whose
// own gate hangs can't report its status, so its lease runs out.
func TestGatesThatHangSilenceNoOtherNode(t *testing.T) {
	n, workers := 2000, 64
	if testing.Short() {
		n, workers = 100, 4
	}
	for name, hang := range map[string]func(ctx context.Context){
		"until the context is done": func(ctx context.Context) { <-ctx.Done() },
		"for an hour":               func(context.Context) { time.Sleep(time.Hour) },
	} {
		for _, from := range []time.Duration{0, time.Minute} {
			t.Run(name+" from "+from.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testSomeGatesHang(t, n, workers, from, hang) })
			})
		}
	}
}

func testSomeGatesHang(t *testing.T, n, workers int, from time.Duration, hang func(ctx context.Context)) {
	s := apitest.New(apitest.Options{})
	begin := time.Now()
	broken := &knob[error]{}
	var failed knob[int]
	sick := func(name string) bool { return (name[len(name)-1]-'0')%2 == 1 }
	w := start(t, s, Config{
		Client: s.Client(apitest.User{}).CoreV1(), Workers: workers,
		Gate: func(ctx context.Context, name string) error {
			if sick(name) && time.Since(begin) >= from {
				hang(ctx)
			}
			return nil
		},
		HealthChecks: []HealthCheck{func(context.Context, string) error { return broken.get() }},
		ErrorHandler: func(_ context.Context, err error, _ string) { failed.set(failed.get() + 1) },
	})
	names := fleet(n)
	for _, name := range names {
		if err := w.c.Add(name); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(from + time.Minute)
	for _, name := range names {
		if status, _ := w.c.Status(name); !sick(name) && status.Phase != PhaseRegistered {
			t.Fatalf("%s, which is well, is %v", name, status.Phase)
		}
	}
	broken.set(errors.New("the backend is gone"))
	w.pass(90 * time.Second)
	for _, name := range names {
		node, live := apitest.Get[*corev1.Node](s, "", name), w.c.Live(t.Context(), name)
		if sick(name) {
			if live == nil {
				t.Fatalf("%s, whose gate hangs, is alive", name)
			}
			continue
		}
		if ready := status.FindCondition(node.Status.Conditions, corev1.NodeReady); live != nil || ready.Status != corev1.ConditionFalse {
			t.Fatalf("%s, which is well but for its check: %v, Ready %+v", name, live, ready)
		}
	}
	if n := failed.get(); n != 2 { // the gates, and the checks
		t.Errorf("%d errors were reported", n)
	}
}

// A gate that a worker does not wait for is asked before each write all the same.
func TestASlowGateIsAskedBeforeEachWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		closed, pods := &knob[error]{}, &knob[int64]{value: 110}
		w := start(t, s, Config{
			Gate: func(context.Context, string) error {
				time.Sleep(time.Second)
				return closed.get()
			},
			Setters: []Setter{podsSetter(pods)},
		})
		w.pass(time.Minute)
		w.expect(1, 0, 0)
		pods.set(50)
		w.pass(2 * DefaultSyncInterval)
		w.expect(0, 0, 1)
		closed.set(errWaiting)
		pods.set(60)
		w.pass(time.Minute)
		w.expect(0, 0, 0)
		closed.set(nil)
		w.pass(2 * DefaultSyncInterval)
		w.expect(0, 1, 1)
		if got := w.node().Status.Capacity.Pods().Value(); got != 60 {
			t.Errorf("%d pods", got)
		}
	})
}
