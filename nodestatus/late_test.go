// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/apitest"
)

// Rounds don't wait for the API server: many nodes whose writes hang stay alive, and
// their health checks run on time.
func TestWritesThatHangCloseNoGate(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 100
	}
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		pods := &knob[int64]{value: 110}
		w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), Setters: []Setter{podsSetter(pods)}})
		names := fleet(n)
		for _, name := range names {
			if err := w.c.Add(name); err != nil {
				t.Fatal(err)
			}
		}
		w.pass(30 * time.Second)
		restore := s.Inject(apitest.Fault{Match: patches, Hang: true})
		pods.set(50)
		for range 18 {
			w.pass(10 * time.Second)
			for _, name := range names {
				if err := w.c.Live(t.Context(), name); err != nil {
					t.Fatal(err)
				}
				if status, _ := w.c.Status(name); time.Since(status.LastRound) > 2*DefaultSyncInterval {
					t.Fatalf("node %s had its last round %v ago", name, time.Since(status.LastRound))
				}
			}
			if err := w.c.Check(nil); err != nil {
				t.Fatal(err)
			}
		}
		restore()
		w.pass(time.Minute)
		for _, name := range names {
			if got := apitest.Get[*corev1.Node](s, "", name).Status.Capacity.Pods().Value(); got != 50 {
				t.Fatalf("node %s has %d pods after the outage", name, got)
			}
		}
	})
}

// slowImages takes the time that the knob says, whatever its context says.
func slowImages(takes *knob[time.Duration], images *knob[string]) Setter {
	return func(_ context.Context, n *corev1.Node) error {
		name := images.get()
		time.Sleep(takes.get())
		n.Status.Images = []corev1.ContainerImage{{Names: []string{name}}}
		return nil
	}
}

func TestASetterThatIsAlwaysLateDoesNotKillTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		takes, images, pods := &knob[time.Duration]{value: 6 * time.Second}, &knob[string]{value: "a"}, &knob[int64]{value: 110}
		w := start(t, s, Config{Setters: []Setter{slowImages(takes, images), podsSetter(pods)}})
		w.pass(5500 * time.Millisecond)
		w.expect(0, 1, 0) // what the setter sets of the spec has no effect after the creation
		w.pass(700 * time.Millisecond)
		if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
			t.Errorf("Ready is %+v after it has returned", ready)
		}
		s.ResetJournal()
		for i := range 360 {
			w.pass(10 * time.Second)
			if err := w.c.Live(t.Context(), node1); err != nil {
				t.Fatal(err)
			}
			if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
				t.Fatalf("Ready is %+v", ready)
			}
			if got := w.node().Status.Images; len(got) != 1 || got[0].Names[0] != "a" {
				t.Fatalf("images are %v", got)
			}
			if i == 350 {
				images.set("b")
				w.pass(30 * time.Second)
				if got := w.node().Status.Images; len(got) != 1 || got[0].Names[0] != "b" {
					t.Errorf("images are %v: what comes late is lost", got)
				}
				break
			}
		}
		if n := len(s.Requests(patches)); n > 14 {
			t.Errorf("%d writes in an hour: the status flaps", n)
		}
		pods.set(50)
		w.c.Trigger(node1)
		w.pass(time.Second)
		if got := w.node().Status.Capacity.Pods().Value(); got != 50 {
			t.Errorf("%d pods: the setter after the late one was not heard", got)
		}
		takes.set(0)
		w.pass(30 * time.Second)
		images.set("c")
		w.c.Trigger(node1)
		w.pass(200 * time.Millisecond)
		if got := w.node().Status.Images; len(got) != 1 || got[0].Names[0] != "c" {
			t.Errorf("images are %v after the setter has become fast", got)
		}
	})
}

// A restart with a slow setter is no reason to call a node NotReady that was Ready.
func TestASlowSetterDoesNotMakeARestartedNodeNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		takes, images := &knob[time.Duration]{}, &knob[string]{value: "a"}
		first := start(t, s, Config{Setters: []Setter{slowImages(takes, images)}})
		first.pass(time.Minute)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		takes.set(8 * time.Second)
		var changed notes[ConditionChanged]
		w := start(t, s, Config{Setters: []Setter{slowImages(takes, images)}, Hooks: Hooks{ConditionChanged: changed.add}})
		w.pass(time.Minute)
		if n := changed.get(); len(n) != 0 {
			t.Errorf("changes: %+v", n)
		}
		if err := w.c.Live(t.Context(), node1); err != nil {
			t.Errorf("Live = %v", err)
		}
		if status, _ := w.c.Status(node1); status.LastWrite.IsZero() {
			t.Error("the node was not written")
		}
	})
}

// A setter that is late by its share of the time of a round costs no further round, and
// two of them don't wake each other.
func TestLateSettersRunOnceAnInterval(t *testing.T) {
	for name, tc := range map[string]struct {
		setters int
		takes   [2]time.Duration
		err     error
	}{
		"ten setters":   {setters: 10, takes: [2]time.Duration{1500 * time.Millisecond, 2500 * time.Millisecond}},
		"forty setters": {setters: 40, takes: [2]time.Duration{300 * time.Millisecond, 700 * time.Millisecond}},
		"both too late": {setters: 3, takes: [2]time.Duration{6 * time.Second, 7 * time.Second}},
		"both fail":     {setters: 10, takes: [2]time.Duration{1500 * time.Millisecond, 2500 * time.Millisecond}, err: errors.New("no answer")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				rounds := &knob[int]{}
				setters := make([]Setter, tc.setters)
				for i := range setters {
					setters[i] = func(_ context.Context, n *corev1.Node) error {
						if i >= len(tc.takes) {
							rounds.set(rounds.get() + 1)
							return nil
						}
						time.Sleep(tc.takes[i])
						return tc.err
					}
				}
				w := start(t, s, Config{Setters: setters})
				w.pass(time.Minute)
				for range 10 { // at different moments of the calls
					w.c.Trigger(node1)
					w.pass(3300 * time.Millisecond)
				}
				rounds.set(0)
				w.pass(10 * time.Minute)
				if n := rounds.get() / (tc.setters - len(tc.takes)); n > 70 {
					t.Errorf("%d rounds in ten minutes, want 70 at most", n)
				}
			})
		})
	}
}

// One that fails for longer than GracePeriod must be reported.
func TestASetterThatFailsAfterARestartIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		gpus := &knob[error]{}
		setter := func(_ context.Context, n *corev1.Node) error {
			if err := gpus.get(); err != nil {
				return err
			}
			n.Status.Capacity["example.com/gpu"] = resource.MustParse("8")
			return nil
		}
		first := start(t, s, Config{Setters: []Setter{setter}})
		first.pass(time.Minute)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		gpus.set(errors.New("driver is loading"))
		w := start(t, s, Config{Setters: []Setter{setter}})
		w.pass(time.Minute)
		if ready := w.condition(corev1.NodeReady); ready.Reason != ReasonSetterFailed {
			t.Errorf("Ready is %+v", ready)
		}
		if got := w.node().Status.Capacity["example.com/gpu"]; got.Value() != 8 {
			t.Errorf("%v GPUs: what the setter does not know was taken away", got)
		}
	})
}

// A value that the API server would refuse is left out, and reported once.
func TestInvalidPartsAreLeftOutOfTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		recorder := events.NewFakeRecorder(100)
		bad := &knob[bool]{}
		var told notes[error]
		setter := func(_ context.Context, n *corev1.Node) error {
			n.Labels["example.com/fine"] = "yes"
			if !bad.get() {
				return nil
			}
			n.Labels["example.com/bad"] = "not a value!"
			n.Labels["no key!"] = "x"
			n.Annotations["no key!"] = "x"
			n.Annotations["example.com/huge"] = strings.Repeat("x", 300<<10)
			n.Status.Capacity["example.com/half"] = resource.MustParse("500m")
			n.Status.Capacity["example.com/debt"] = resource.MustParse("-1")
			n.Status.Addresses = append(n.Status.Addresses, n.Status.Addresses[0])
			n.Status.DeclaredFeatures = []string{"Zebra", "not upper", "Antelope", "Zebra"}
			return nil
		}
		w := start(t, s, Config{
			Setters: []Setter{setter}, EventRecorder: recorder,
			ErrorHandler: func(_ context.Context, err error, _ string) { told.add(err) },
		})
		before := w.node()
		bad.set(true)
		w.pass(10 * time.Minute)
		n := w.node()
		if diff := cmp.Diff(before.Labels, n.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(before.Annotations, n.Annotations); diff != "" {
			t.Errorf("annotations (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"Antelope", "Zebra"}, n.Status.DeclaredFeatures); diff != "" {
			t.Errorf("declared features (-want +got):\n%s", diff)
		}
		if status, _ := w.c.Status(node1); status.Failures != 0 || len(n.Status.Capacity) != len(before.Status.Capacity) || len(n.Status.Addresses) != 2 {
			t.Errorf("status %+v, capacity %v, addresses %v", status, n.Status.Capacity, n.Status.Addresses)
		}
		errs := told.get()
		if len(errs) != 1 {
			t.Fatalf("the error handler was told %v, want one error", errs)
		}
		for _, part := range []string{`label "example.com/bad"`, `label "no key!"`, `annotation "no key!"`, `annotation "example.com/huge"`, "capacity of example.com/half", "capacity of example.com/debt", "address InternalIP", `declared feature "not upper"`} {
			if !strings.Contains(errs[0].Error(), part) {
				t.Errorf("%q does not name %s", errs[0], part)
			}
		}
		found := 0
		for len(recorder.Events) > 0 {
			if strings.Contains(<-recorder.Events, reasonInvalid) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d events, want one", found)
		}
	})
}
