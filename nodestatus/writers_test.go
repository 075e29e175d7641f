// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// watch runs the informer that a kubelet has, of its own Node, and returns when
// it is synced.
func watch(t *testing.T, c *Controller, client kubernetes.Interface) {
	t.Helper()
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, node1).String()
	informer := cache.NewSharedIndexInformerWithOptions(
		cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.ParseSelectorOrDie(one)),
		&corev1.Node{}, cache.SharedIndexInformerOptions{})
	if _, err := informer.AddEventHandler(c.EventHandler()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
}

// unknown writes what kube-controller-manager writes of a node that it has not
// heard of. It reports whether that was a transition.
func unknown(s *apitest.Server) bool {
	now := metav1.Now()
	known := status.FindCondition(w1(s).Status.Conditions, corev1.NodeReady).Status != corev1.ConditionUnknown
	apitest.Edit(s, "", node1, func(n *corev1.Node) {
		for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
			c := corev1.NodeCondition{Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.", LastTransitionTime: now}
			if old := status.FindCondition(n.Status.Conditions, kind); old != nil {
				c.LastHeartbeatTime = old.LastHeartbeatTime
				if old.Status == corev1.ConditionUnknown {
					c.LastTransitionTime = old.LastTransitionTime
				}
			}
			SetCondition(n, c)
		}
	})
	return known
}

// A second writer of conditions and one of Unknown, at random moments,
// while calls are slow, fail and get lost. Their values stay as they wrote
// them, and ours are right again within a sync interval.
// No transition time is ever earlier than the last transition.
func TestASecondWriterKeepsItsValuesAndTransitionTimesGrow(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testASecondWriter(t, rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

func testASecondWriter(t *testing.T, random *rand.Rand) {
	s := apitest.New(apitest.Options{})
	health := &knob[error]{}
	w := start(t, s, Config{HealthChecks: []HealthCheck{healthCheck(health)}, ErrorHandler: func(context.Context, error, string) {}})
	watch(t, w.c, s.Client(apitest.NodeUser(node1)))
	s.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch"}, Latency: time.Duration(random.IntN(300)) * time.Millisecond})
	lag := s.LagWatches(apitest.Match{}, time.Duration(random.IntN(500))*time.Millisecond)
	defer lag()

	theirs := corev1.NodeCondition{Type: "KernelDeadlock"}
	var lastChange time.Time // of the Ready condition, by any client
	changed := func() { lastChange = time.Now().Truncate(time.Second) }
	for range 60 {
		switch random.IntN(6) {
		case 0, 1:
			theirs.Status = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[random.IntN(2)]
			theirs.Reason = fmt.Sprint("R", random.IntN(1000))
			theirs.LastHeartbeatTime = metav1.NewTime(time.Now().Truncate(time.Second))
			theirs.LastTransitionTime = theirs.LastHeartbeatTime
			apitest.Edit(s, "", node1, func(n *corev1.Node) { SetCondition(n, theirs) })
		case 2:
			if unknown(s) {
				changed()
			}
		case 3:
			next := []error{nil, errors.New("down")}[random.IntN(2)]
			if (next == nil) != (health.get() == nil) {
				health.set(next)
				changed()
			}
			w.c.Trigger(node1)
		case 4:
			fault := []apitest.Fault{{Err: apitest.ErrConnReset}, {LoseResponse: true}, {Status: statuserr.InternalError("x")}, {CommitAfter: time.Second}}[random.IntN(4)]
			fault.Match, fault.Times = patches, 1+random.IntN(2)
			s.Inject(fault)
			w.c.Trigger(node1)
		case 5:
			// Both at once, around a write of ours.
			w.c.Trigger(node1)
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			if unknown(s) {
				changed()
			}
		}
		w.pass(time.Duration(random.Int64N(int64(3 * time.Second))))
		if random.IntN(4) > 0 {
			continue
		}
		w.pass(DefaultSyncInterval + 2*time.Second) // the latencies of faults included
		want := corev1.ConditionTrue
		if health.get() != nil {
			want = corev1.ConditionFalse
		}
		ready := w.condition(corev1.NodeReady)
		if ready.Status != want {
			t.Fatalf("Ready is %+v an interval after the last writer, want %s", ready, want)
		}
		if ready.LastTransitionTime.Time.Before(lastChange) {
			t.Fatalf("Ready is dated %v, but changed last at %v: %v", ready.LastTransitionTime, lastChange, s.Requests(apitest.Match{}))
		}
		for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
			if c := w.condition(kind); c.Status != corev1.ConditionFalse || c.Reason != ReasonNoPressure {
				t.Fatalf("%s is %+v", kind, c)
			}
		}
		if theirs.Status != "" {
			if diff := cmp.Diff(theirs, w.condition(theirs.Type)); diff != "" {
				t.Fatalf("their condition (-want +got):\n%s", diff)
			}
		}
	}
}

// A writer that undoes our writes, every time, is answered once an interval.
func TestFightIsSlow(t *testing.T) { synctest.Test(t, testFightIsSlow) }

func testFightIsSlow(t *testing.T) {
	s := apitest.New(apitest.Options{})
	w := start(t, s, Config{})
	watch(t, w.c, s.Client(apitest.NodeUser(node1)))
	s.ResetJournal()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if ready := status.FindCondition(w1(s).Status.Conditions, corev1.NodeReady); ready.Reason != "Mine" {
				apitest.Edit(s, "", node1, func(n *corev1.Node) {
					SetCondition(n, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "Mine"})
				})
			}
			time.Sleep(500 * time.Millisecond)
		}
	}()
	w.pass(10 * time.Minute)
	cancel()
	<-ended
	if n := len(s.Requests(patches)); n < 50 || n > 600/10+20 {
		t.Errorf("%d patches in ten minutes against another writer, want one per interval", n)
	}
	if n := len(s.Requests(gets)); n > 20 {
		t.Errorf("%d reads", n)
	}
}

// The event handler: a deleted and a replaced Node are noticed at once, a
// changed spec is reported, and our own writes cause none.
func TestEventHandler(t *testing.T) { synctest.Test(t, testEventHandler) }

func testEventHandler(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var specs notes[string]
	var registered notes[bool]
	w := start(t, s, Config{OnDeleted: DeletedIdle, Hooks: Hooks{
		SpecChanged: func(c SpecChanged) { specs.add(c.Node.Spec.PodCIDR) },
		Registered:  func(r Registered) { registered.add(r.Created) },
	}})
	watch(t, w.c, s.Client(apitest.NodeUser(node1)))
	s.ResetJournal()
	w.pass(time.Hour)
	if n := len(s.Requests(patches)); n < 11 || n > 13 || len(s.Requests(gets)) != 0 {
		t.Errorf("%d patches, %d reads in an hour", n, len(s.Requests(gets)))
	}
	apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/24" })
	w.pass(time.Second)
	if told := specs.get(); len(told) != 1 || told[0] != "10.0.0.0/24" || w.c.Node(node1).Spec.PodCIDR != "10.0.0.0/24" {
		t.Errorf("the spec changes told are %q", told)
	}
	s.ResetJournal()
	apitest.Remove[*corev1.Node](s, "", node1)
	w.pass(time.Second)
	if status, _ := w.c.Status(node1); status.Phase != PhaseDeleted {
		t.Errorf("the status is %+v a second after the Node was deleted", status)
	}
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1}})
	w.pass(time.Second)
	if status, _ := w.c.Status(node1); status.Phase != PhaseRegistered || status.UID != w.node().UID {
		t.Errorf("the status is %+v a second after somebody created the Node", status)
	}
	// Deleted and created within the lag of the watch.
	apitest.Remove[*corev1.Node](s, "", node1)
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1}})
	w.pass(time.Second)
	if status, _ := w.c.Status(node1); status.Phase != PhaseRegistered || status.UID != w.node().UID {
		t.Errorf("the status is %+v a second after the Node was replaced", status)
	}
	if diff := cmp.Diff([]bool{true, false, false}, registered.get()); diff != "" {
		t.Errorf("registrations (-want +got):\n%s", diff)
	}
}

// The watch may show another spec while a round is under way, and nothing is written then.
func TestASpecThatChangesDuringARoundIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		var specs notes[string]
		slow := func(context.Context, *corev1.Node) error { time.Sleep(2 * time.Second); return nil }
		w := start(t, s, Config{Setters: []Setter{slow}, Hooks: Hooks{SpecChanged: func(c SpecChanged) { specs.add(c.Node.Spec.PodCIDR) }}})
		w.pass(DefaultSyncInterval + time.Second)
		began, _ := w.c.Status(node1)
		for next := began; next.LastRound == began.LastRound; next, _ = w.c.Status(node1) {
			w.pass(100 * time.Millisecond)
		}
		w.pass(DefaultSyncInterval - time.Second) // a second after the beginning of the next round, which ends in another one
		node := apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/24" })
		w.c.EventHandler().OnUpdate(nil, node)
		w.pass(3 * time.Second)
		if diff := cmp.Diff([]string{"10.0.0.0/24"}, specs.get()); diff != "" {
			t.Errorf("the spec changes that were reported (-want +got):\n%s", diff)
		}
	})
}
