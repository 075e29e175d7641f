// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/requests"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// fleet returns the names of n nodes.
func fleet(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("virtual-%04d", i)
	}
	return names
}

// A fleet: every node is registered with its own values, costs one POST, and
// reports as often as one alone; a start and an outage are no storms.
func TestFleet(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 50
	}
	synctest.Test(t, func(t *testing.T) { testFleet(t, n) })
}

func testFleet(t *testing.T, n int) {
	s := apitest.New(apitest.Options{})
	s.Inject(apitest.Fault{Latency: 10 * time.Millisecond})
	w := start(t, s, Config{
		Client:       s.Client(apitest.User{}).CoreV1(),
		Workers:      16,
		SyncInterval: 30 * time.Second, // fewer rounds, for a faster test
		Setters: []Setter{StandardLabels(), func(_ context.Context, node *corev1.Node) error {
			node.Spec.ProviderID = "example://" + node.Name
			return nil
		}},
	})
	names := append(fleet(n-1), node1)
	for _, name := range names[:n-1] {
		if err := w.c.Add(name); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(20 * time.Second)
	if created := len(s.Requests(posts)); created != n {
		t.Fatalf("%d nodes created in 20 s, want %d", created, n)
	}
	for _, name := range names {
		node := apitest.Get[*corev1.Node](s, "", name)
		if node.Labels["kubernetes.io/hostname"] != name || node.Spec.ProviderID != "example://"+name {
			t.Fatalf("node %s is %+v", name, node)
		}
		if err := w.c.Live(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	for second, requests := range requests.PerSecond(s.Requests(posts)) {
		if requests > 120 { // 100 a second for few nodes, and a burst of one per worker
			t.Errorf("%d creates in second %d", requests, second)
		}
	}

	w.pass(15 * time.Minute)
	s.ResetJournal()
	w.pass(time.Hour)
	if got := len(s.Requests(patches)); got < 12*n-n/20 || got > 12*n+n/20 {
		t.Errorf("%d patches in an unchanged hour of %d nodes, want %d", got, n, 12*n)
	}
	if got := len(s.Requests(apitest.Match{})) - len(s.Requests(patches)); got != 0 {
		t.Errorf("%d other requests", got)
	}
	most := 0
	for _, requests := range requests.PerSecond(s.Requests(patches)) {
		most = max(most, requests)
	}
	if most > 12 { // 1 on average; nodes that registered together have dispersed
		t.Errorf("%d patches in one second", most)
	}

	// An outage of a minute: read and written once each, at one and a half of
	// the pace of an interval.
	remove := s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
	for _, name := range names {
		w.c.Resync(name)
	}
	w.pass(time.Minute)
	remove()
	s.ResetJournal()
	w.pass(20 * time.Second)
	if reads, writes := len(s.Requests(gets)), len(s.Requests(patches)); reads < n || reads > n+n/50 || writes < n || writes > n+n/50 {
		t.Errorf("%d reads, %d patches after the outage, want %d each", reads, writes, n)
	}
	if err := w.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// In a fleet one deleted node ends neither the others nor Run.
func TestFleetNodeDeleted(t *testing.T) { synctest.Test(t, testFleetNodeDeleted) }

func testFleetNodeDeleted(t *testing.T) {
	s := apitest.New(apitest.Options{})
	w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1()})
	if err := w.c.Add("other"); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Second)
	apitest.Remove[*corev1.Node](s, "", "other")
	w.c.Resync("other")
	w.pass(time.Hour)
	if status, _ := w.c.Status("other"); status.Phase != PhaseDeleted {
		t.Errorf("the status is %+v", status)
	}
	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Errorf("Live of the other node: %v", err)
	}
	// Removed and added again it is registered again.
	w.c.Remove("other")
	if _, ok := w.c.Status("other"); ok {
		t.Error("a removed node has a status")
	}
	if err := w.c.Live(t.Context(), "other"); err == nil || err.Error() != `nodestatus: node "other" is not managed` {
		t.Errorf("Live of a removed node: %v", err)
	}
	if err := w.c.Add("other"); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Second)
	if apitest.Get[*corev1.Node](s, "", "other") == nil {
		t.Error("not registered again")
	}
	if err := w.c.Add("Not A Name"); err == nil {
		t.Error("Add takes any name")
	}
}

// Remove and Add in every order, during calls: one round at a time.
func TestRemoveAndAdd(t *testing.T) {
	for _, policy := range []ShutdownPolicy{ShutdownLeave, ShutdownNotReady, ShutdownUnregister} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRemoveAndAdd(t, policy) })
		})
	}
}

func testRemoveAndAdd(t *testing.T, policy ShutdownPolicy) {
	s := apitest.New(apitest.Options{})
	s.Inject(apitest.Fault{Latency: 30 * time.Millisecond})
	var mu sync.Mutex
	running := 0
	w := start(t, s, Config{
		Client: s.Client(apitest.User{}).CoreV1(), OnShutdown: policy,
		Setters: []Setter{func(context.Context, *corev1.Node) error {
			mu.Lock()
			running++
			if running > 1 && policy != ShutdownLeave { // which does not wait for calls under way
				t.Error("two rounds of a node at once")
			}
			mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		}},
	})
	for i := range 100 {
		w.c.Remove(node1)
		w.pass(time.Duration(i%7) * 10 * time.Millisecond)
		if err := w.c.Add(node1); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Duration(i%11) * 10 * time.Millisecond)
	}
	w.pass(time.Minute)
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		t.Errorf("Ready is %+v after the last Add", ready)
	}
	if status, ok := w.c.Status(node1); !ok || status.Phase != PhaseRegistered {
		t.Errorf("the status is %+v", status)
	}
	s.ResetJournal()
	w.pass(time.Hour)
	w.expect(0, 0, len(s.Requests(patches)))
	if n := len(s.Requests(patches)); n > 13 {
		t.Errorf("%d patches in an hour: two chains?", n)
	}

	w.c.Remove(node1)
	w.pass(time.Second)
	if _, ok := w.c.Status(node1); ok {
		t.Error("it is still served a second after Remove")
	}
	node := apitest.Get[*corev1.Node](s, "", node1)
	switch policy {
	case ShutdownLeave:
		if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
			t.Errorf("Ready is %+v", ready)
		}
	case ShutdownNotReady:
		if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionFalse || ready.Reason != ReasonShutdown {
			t.Errorf("Ready is %+v", ready)
		}
	case ShutdownUnregister:
		if node != nil {
			t.Error("the Node is still there")
		}
	}
}

// The last write does not wait for the round that is under way, and the node that is added
// again does.
func TestARoundThatIsUnderWayDelaysNoLastWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		slow := &knob[time.Duration]{}
		calls := &notes[time.Time]{}
		w := start(t, s, Config{
			Client: s.Client(apitest.User{}).CoreV1(), OnShutdown: ShutdownNotReady,
			HealthChecks: []HealthCheck{func(context.Context, string) error {
				calls.add(time.Now())
				time.Sleep(slow.get())
				return nil
			}},
		})
		w.pass(time.Minute)
		slow.set(4 * time.Second)
		w.c.Trigger(node1)
		w.pass(time.Second)
		calls.set(nil)
		removed := time.Now()
		w.c.Remove(node1)
		if err := w.c.Add(node1); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		if ready := w.condition(corev1.NodeReady); ready.Reason != ReasonShutdown {
			t.Errorf("a second after Remove Ready is %+v", ready)
		}
		slow.set(0)
		w.pass(time.Minute)
		if all := calls.get(); len(all) == 0 || all[0].Sub(removed) < 3*time.Second {
			t.Errorf("the check of the node that was added again was called at %v, want it after the round of the old one, which ends 3 s after %v", all, removed)
		}
		if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
			t.Errorf("Ready is %+v after Add", ready)
		}
	})
}

// What OnShutdown asks for is done for every node when Run ends.
func TestShutdown(t *testing.T) {
	for _, policy := range []ShutdownPolicy{ShutdownLeave, ShutdownNotReady, ShutdownUnregister} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testShutdown(t, policy) })
		})
	}
}

func testShutdown(t *testing.T, policy ShutdownPolicy) {
	s := apitest.New(apitest.Options{})
	s.Inject(apitest.Fault{Latency: 10 * time.Millisecond})
	var written notes[Written]
	w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), OnShutdown: policy, Hooks: Hooks{Written: written.add}})
	names := fleet(100)
	for _, name := range names {
		if err := w.c.Add(name); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(time.Minute)
	// One was replaced by another client in the meantime: that one is not ours.
	apitest.Remove[*corev1.Node](s, "", names[0])
	stranger := &corev1.Node{}
	stranger.Name = names[0]
	s.Put(stranger)
	s.ResetJournal()
	begin := time.Now()
	if err := w.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %v", took)
	}
	left := apitest.List[*corev1.Node](s, "")
	switch policy {
	case ShutdownLeave:
		if n := len(s.Requests(apitest.Match{})); n != 0 || len(left) != 101 {
			t.Errorf("%d requests at the end, %d nodes left", n, len(left))
		}
	case ShutdownNotReady:
		for _, node := range left {
			ready := status.FindCondition(node.Status.Conditions, corev1.NodeReady)
			if node.Name == names[0] {
				if ready != nil {
					t.Errorf("the stranger was written: %+v", ready)
				}
				continue
			}
			if ready.Status != corev1.ConditionFalse || ready.Reason != ReasonShutdown || ready.LastTransitionTime.Time.Before(begin.Truncate(time.Second)) {
				t.Errorf("%s: Ready is %+v", node.Name, ready)
			}
			if len(node.Status.Conditions) != 4 || node.Status.Capacity.Cpu().IsZero() {
				t.Errorf("%s has lost something: %+v", node.Name, node.Status)
			}
		}
		if last := written.get()[len(written.get())-1]; last.Cause != CauseShutdown {
			t.Errorf("the last write was told as %+v", last)
		}
	case ShutdownUnregister:
		if len(left) != 1 || left[0].Name != names[0] {
			t.Errorf("%d nodes are left", len(left))
		}
	}
}

// An API server that stumbles at the end is tried again within ShutdownTimeout,
// and one that is away holds Run up no longer.
func TestShutdownTriesAgain(t *testing.T) { synctest.Test(t, testShutdownTriesAgain) }

func testShutdownTriesAgain(t *testing.T) {
	s := apitest.New(apitest.Options{})
	w := start(t, s, Config{OnShutdown: ShutdownNotReady})
	w.pass(time.Second)
	s.Inject(apitest.Fault{Match: patches, Times: 3, Status: statuserr.InternalError("busy")})
	if err := w.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if ready := w.condition(corev1.NodeReady); ready.Reason != ReasonShutdown {
		t.Errorf("Ready is %+v", ready)
	}
	var notes notes[error]
	other := start(t, s, Config{NodeName: "n2", Template: &corev1.Node{}, OnShutdown: ShutdownNotReady, ErrorHandler: func(_ context.Context, err error, _ string) { notes.add(err) }})
	s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
	begin := time.Now()
	if err := other.stop(); err != nil || time.Since(begin) > DefaultShutdownTimeout || len(notes.get()) != 1 {
		t.Errorf("Run = %v after %v, reported %v", err, time.Since(begin), notes.get())
	}
}

// A controller that had nothing to do for long is not stuck when it gets a node.
func TestCheckAfterAdd(t *testing.T) { synctest.Test(t, testCheckAfterAdd) }

func testCheckAfterAdd(t *testing.T) {
	w := start(t, apitest.New(apitest.Options{}), Config{})
	w.c.Remove(node1)
	w.pass(time.Hour)
	if err := w.c.Add(node1); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Check(nil); err != nil {
		t.Errorf("Check after Add: %v", err)
	}
	w.pass(time.Second)
}
