// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/callback/callbacktest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// noted returns a hook that notes its call, and then panics if it is the one named.
func noted[T any](calls *notes[string], name, panics string) func(T) {
	return func(T) {
		calls.add(name)
		if "Hooks."+name == panics {
			panic("boom")
		}
	}
}

// A panic in a callback that returns nothing changes nothing: the same hooks are called
// and the Node is the same as without it.
func TestAPanicInAHookChangesNothing(t *testing.T) {
	var want []string
	for _, name := range []string{
		"", "Hooks.Registered", "Hooks.Deleted", "Hooks.Replaced", "Hooks.Written", "Hooks.Failed", "Hooks.Recovered",
		"Hooks.ConditionChanged", "Hooks.SpecChanged", "Hooks.Rebooted", "Hooks.SetterFailed", "EventRecorder", "ErrorHandler",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := testHooks(t, name)
				if name == "" {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("hooks called\n%v, want\n%v", got, want)
				}
			})
		})
	}
}

// testHooks leads a Node through all hooks, of which one panics, and returns their
// calls.
func testHooks(t *testing.T, panics string) []string {
	s := apitest.New(apitest.Options{})
	var calls notes[string]
	var errs notes[error]
	health, boot := &knob[error]{}, &knob[string]{value: "one"}
	cfg := Config{
		OnDeleted:    DeletedReregister,
		OnShutdown:   ShutdownNotReady,
		Setters:      []Setter{func(_ context.Context, n *corev1.Node) error { n.Status.NodeInfo.BootID = boot.get(); return nil }},
		HealthChecks: []HealthCheck{healthCheck(health)},
		ErrorHandler: func(_ context.Context, err error, _ string) {
			errs.add(err)
			if panics == "ErrorHandler" {
				panic("boom")
			}
		},
		Hooks: Hooks{
			Registered:       noted[Registered](&calls, "Registered", panics),
			Deleted:          noted[Deleted](&calls, "Deleted", panics),
			Replaced:         noted[Replaced](&calls, "Replaced", panics),
			Written:          noted[Written](&calls, "Written", panics),
			Failed:           noted[Failed](&calls, "Failed", panics),
			Recovered:        noted[Recovered](&calls, "Recovered", panics),
			ConditionChanged: noted[ConditionChanged](&calls, "ConditionChanged", panics),
			SpecChanged:      noted[SpecChanged](&calls, "SpecChanged", panics),
			Rebooted:         noted[Rebooted](&calls, "Rebooted", panics),
			SetterFailed:     noted[SetterFailed](&calls, "SetterFailed", panics),
		},
	}
	if panics == "EventRecorder" {
		cfg.EventRecorder = callbacktest.Recorder{}
	}
	w := start(t, s, cfg)
	w.pass(time.Minute)
	health.set(errors.New("sick")) // ConditionChanged, SetterFailed
	w.c.Trigger(node1)
	w.pass(time.Second)
	health.set(nil)
	boot.set("two") // Rebooted
	w.c.Trigger(node1)
	w.pass(time.Second)
	apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.Unschedulable = true }) // SpecChanged
	w.c.Resync(node1)
	w.pass(time.Second)
	restore := s.Inject(apitest.Fault{Status: statuserr.InternalError("broken"), Times: 1}) // Failed, Recovered
	w.c.Resync(node1)
	w.pass(time.Minute)
	restore()
	w.c.Resync(node1)
	w.pass(time.Minute)
	apitest.Remove[*corev1.Node](s, "", node1) // Deleted, Registered
	w.c.Resync(node1)
	w.pass(time.Minute)
	replacement := w.node().DeepCopy()
	apitest.Remove[*corev1.Node](s, "", node1)
	replacement.UID, replacement.ResourceVersion = "", ""
	s.Put(replacement) // Replaced, Registered
	w.c.Resync(node1)
	w.pass(time.Minute)

	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Errorf("Live = %v", err)
	}
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		t.Errorf("Ready is %+v", ready)
	}
	if err := w.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if ready := w.condition(corev1.NodeReady); ready.Reason != ReasonShutdown {
		t.Errorf("Ready is %+v after Run", ready)
	}
	for _, hook := range []string{
		"Registered", "Deleted", "Replaced", "Written", "Failed", "Recovered", "ConditionChanged", "SpecChanged", "Rebooted", "SetterFailed",
	} {
		if !slices.Contains(calls.get(), hook) {
			t.Errorf("the scenario has no call of %s", hook)
		}
	}
	if panics != "" && panics != "ErrorHandler" {
		callbacktest.WantPanic(t, errs.get(), panics)
	}
	return calls.get()
}

// A panic in Gate closes it, and one in a setter or health check is its failure, for
// one node and until it ends.
func TestAPanicConcernsOneNode(t *testing.T) {
	const bad = "node-00001"
	for _, name := range []string{"Gate", "Setters[0]", "HealthChecks[0]"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broken := &knob[bool]{}
				fail := func(callback, node string) {
					if callback == name && node == bad && broken.get() {
						panic("boom")
					}
				}
				var errs notes[error]
				s := apitest.New(apitest.Options{})
				w := start(t, s, Config{
					Client:       s.Client(apitest.User{}).CoreV1(),
					NodeName:     node1,
					Gate:         func(_ context.Context, node string) error { fail("Gate", node); return nil },
					Setters:      []Setter{func(_ context.Context, n *corev1.Node) error { fail("Setters[0]", n.Name); return nil }},
					HealthChecks: []HealthCheck{func(_ context.Context, node string) error { fail("HealthChecks[0]", node); return nil }},
					ErrorHandler: func(_ context.Context, err error, _ string) { errs.add(err) },
				})
				for i := range 3 {
					if err := w.c.Add(fmt.Sprintf("node-%05d", i)); err != nil {
						t.Fatal(err)
					}
				}
				w.pass(time.Minute)
				broken.set(true)
				w.c.Trigger(bad)
				w.pass(time.Minute)
				s.ResetJournal()
				w.pass(time.Hour)
				writes := map[string]int{}
				for _, r := range s.Requests(patches) {
					writes[r.Name]++
				}
				for i := range 3 {
					node := fmt.Sprintf("node-%05d", i)
					want := 12 // and as many for a node whose check fails, with one message
					if node == bad && name == "Gate" {
						want = 0
					}
					if n := writes[node]; n < want-1 || n > want+1 {
						t.Errorf("%d writes of %s in an hour, want %d", n, node, want)
					}
					ready := status.FindCondition(apitest.Get[*corev1.Node](s, "", node).Status.Conditions, corev1.NodeReady)
					if sick := node == bad && name == "HealthChecks[0]"; sick == (ready.Status == corev1.ConditionTrue) || strings.Contains(ready.Message, "goroutine") {
						t.Errorf("Ready of %s is %+v", node, ready)
					}
				}
				if told := errs.get(); len(told) != 1 || !strings.Contains(told[0].Error(), bad) {
					t.Errorf("reported %v, want one error about the node", told)
				}
				callbacktest.WantPanic(t, errs.get(), name)

				broken.set(false)
				w.c.Trigger(bad)
				w.pass(time.Second)
				if status, _ := w.c.Status(bad); status.GateClosed || status.Failures > 0 {
					t.Errorf("status after that: %+v", status)
				}
				ready := status.FindCondition(apitest.Get[*corev1.Node](s, "", bad).Status.Conditions, corev1.NodeReady)
				if ready.Status != corev1.ConditionTrue {
					t.Errorf("Ready after that is %+v", ready)
				}
			})
		})
	}
}
