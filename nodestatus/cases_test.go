// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// knob is a value that a test turns while setters and checks read it.
type knob[T any] struct {
	mu    sync.Mutex
	value T
}

func (k *knob[T]) set(value T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.value = value
}

func (k *knob[T]) get() T {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.value
}

// notes are the calls of hooks, for a test to read.
type notes[T any] struct{ knob[[]T] }

func (n *notes[T]) add(note T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.value = append(n.value, note)
}

// podsSetter says how many pods the node takes.
func podsSetter(pods *knob[int64]) Setter {
	return func(_ context.Context, n *corev1.Node) error {
		n.Status.Capacity[corev1.ResourcePods] = *resource.NewQuantity(pods.get(), resource.DecimalSI)
		return nil
	}
}

// healthCheck fails with the error of the knob.
func healthCheck(health *knob[error]) HealthCheck {
	return func(context.Context, string) error { return health.get() }
}

// A change is patched within 200 ms of Trigger, and 1,000 Triggers in
// 100 ms are at most 2 patches.
func TestAChangeIsWrittenWithin200ms(t *testing.T) { synctest.Test(t, testAChangeIsWrittenWithin200ms) }

func testAChangeIsWrittenWithin200ms(t *testing.T) {
	s := apitest.New(apitest.Options{})
	pods := &knob[int64]{value: 110}
	w := start(t, s, Config{Setters: []Setter{podsSetter(pods)}})
	w.expect(1, 0, 0)
	w.pass(time.Minute + 3*time.Second)
	for i := range 5 {
		pods.set(int64(i))
		begin := time.Now()
		w.c.Trigger(node1)
		w.pass(200 * time.Millisecond)
		if got := w.node().Status.Capacity.Pods().Value(); got != int64(i) {
			t.Errorf("%d pods 200 ms after Trigger, want %d", got, i)
		}
		if at := s.Requests(patches)[0].Time.Sub(begin); at > 200*time.Millisecond {
			t.Errorf("patched %v after Trigger", at)
		}
		w.expect(0, 0, 1)
	}
	w.pass(time.Second)
	for i := range 1000 {
		pods.set(int64(1000 + i))
		w.c.Trigger(node1)
		w.pass(100 * time.Microsecond)
	}
	w.pass(200 * time.Millisecond)
	if n := len(s.Requests(patches)); n < 1 || n > 2 {
		t.Errorf("%d patches for 1000 Triggers in 100 ms, want 1 or 2", n)
	}
	if got := w.node().Status.Capacity.Pods().Value(); got != 1999 {
		t.Errorf("%d pods at the end, want the last value", got)
	}
}

// A setter that fails keeps its last values, and the others go on.
func TestASetterThatFailsKeepsItsLastValues(t *testing.T) {
	synctest.Test(t, testASetterThatFailsKeepsItsLastValues)
}

func testASetterThatFailsKeepsItsLastValues(t *testing.T) {
	s := apitest.New(apitest.Options{})
	pods, failing := &knob[int64]{value: 110}, &knob[error]{}
	var notes notes[SetterFailed]
	w := start(t, s, Config{
		Setters: []Setter{
			func(_ context.Context, n *corev1.Node) error {
				n.Status.NodeInfo.KubeletVersion = "half-done" // must not be seen when it fails
				SetCondition(n, corev1.NodeCondition{Type: "Fit", Status: corev1.ConditionTrue, Reason: "Yes"})
				n.Status.Capacity["example.com/gpu"] = resource.MustParse("2")
				if err := failing.get(); err != nil {
					n.Status.Capacity["example.com/gpu"] = resource.MustParse("0")
					return err
				}
				n.Status.NodeInfo.KubeletVersion = "v1"
				return nil
			},
			podsSetter(pods),
		},
		Hooks: Hooks{SetterFailed: notes.add},
	})
	before := w.node()
	broken := errors.New("no answer from the runtime")
	failing.set(broken)
	pods.set(50)
	w.c.Trigger(node1)
	w.pass(time.Second)
	n := w.node()
	if n.Status.Capacity.Pods().Value() != 50 {
		t.Error("the setter that works has no effect")
	}
	if gpu := n.Status.Capacity["example.com/gpu"]; gpu.Value() != 2 || n.Status.NodeInfo.KubeletVersion != "v1" {
		t.Errorf("the failing setter has left %v and %q", gpu.Value(), n.Status.NodeInfo.KubeletVersion)
	}
	if diff := cmp.Diff(before.Status.Addresses, n.Status.Addresses); diff != "" {
		t.Errorf("addresses have changed: %s", diff)
	}
	if w.condition("Fit").Reason != "Yes" || w.condition(corev1.NodeReady).Status != corev1.ConditionTrue {
		t.Errorf("conditions are %v", n.Status.Conditions)
	}
	if told := notes.get(); len(told) != 1 || told[0].Field != "Setters[0]" || told[0].Late || !errors.Is(told[0].Err, broken) {
		t.Errorf("the hook was told %+v", told)
	}
}

// A check that hangs makes Ready False within its timeout, closes the lease's
// gate after three rounds, and opens it again when it returns.
func TestACheckThatHangsMakesTheNodeNotReady(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testACheckThatHangs(t, deaf) })
		})
	}
}

func testACheckThatHangs(t *testing.T, deaf bool) {
	s := apitest.New(apitest.Options{})
	release := make(chan struct{})
	hanging, calls := &knob[bool]{}, &knob[int]{}
	w := start(t, s, Config{HealthChecks: []HealthCheck{func(ctx context.Context, _ string) error {
		if !hanging.get() {
			return nil
		}
		calls.set(calls.get() + 1)
		done := ctx.Done()
		if deaf {
			done = nil
		}
		select {
		case <-done:
		case <-release:
		}
		return nil
	}}})
	t.Cleanup(sync.OnceFunc(func() {
		select {
		case <-release:
		default:
			close(release)
		}
	}))
	w.pass(time.Minute)
	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Fatalf("Live = %v while all is well", err)
	}
	s.ResetJournal()

	hanging.set(true)
	begin := time.Now()
	w.c.Trigger(node1)
	w.pass(functionTimeout + 200*time.Millisecond)
	ready := w.condition(corev1.NodeReady)
	if ready.Status != corev1.ConditionFalse || ready.Reason != ReasonHealthCheckTimeout {
		t.Errorf("Ready is %+v after the timeout", ready)
	}
	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Errorf("Live = %v after one round: NotReady is the better message", err)
	}
	w.pass(time.Until(begin.Add(50 * time.Second)))
	if err := w.c.Live(t.Context(), node1); err == nil {
		t.Error("Live after three rounds that hang")
	}
	w.expect(0, 0, 1)
	if n := calls.get(); deaf && n != 1 {
		t.Errorf("%d calls of a function that has not returned, want 1", n)
	}
	w.pass(time.Hour)
	if err := w.c.Check(nil); err != nil {
		t.Errorf("Check = %v: the loop is not stuck", err)
	}

	hanging.set(false)
	close(release)
	recovered := 200 * time.Millisecond
	if !deaf {
		recovered = DefaultSyncInterval // nothing reports that it works again
	}
	w.pass(recovered)
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		t.Errorf("Ready is %+v after it returned", ready)
	}
	if err := w.c.Live(t.Context(), node1); err != nil {
		t.Errorf("Live = %v after it returned", err)
	}
}

// With several setters a slow one leaves time for those after it.
func TestOneNodeHangsAndOthersRun(t *testing.T) { synctest.Test(t, testOneNodeHangsAndOthersRun) }

func testOneNodeHangsAndOthersRun(t *testing.T) {
	s := apitest.New(apitest.Options{})
	pods := &knob[int64]{value: 7}
	hang := func(ctx context.Context, _ *corev1.Node) error { <-ctx.Done(); return ctx.Err() }
	w := start(t, s, Config{Setters: []Setter{hang, hang, hang, podsSetter(pods)}})
	w.pass(DefaultGracePeriod + DefaultSyncInterval)
	if got := w.node().Status.Capacity.Pods().Value(); got != 7 {
		t.Errorf("%d pods, want 7: the last setter had no time", got)
	}
	if ready := w.condition(corev1.NodeReady); ready.Reason != ReasonSetterTimeout || !strings.Contains(ready.Message, "Setters[2]") {
		t.Errorf("Ready is %+v", ready)
	}
}

// A deleted Node, under each policy.
func TestADeletedNodeEndsRun(t *testing.T) { synctest.Test(t, testADeletedNodeEndsRun) }

func testADeletedNodeEndsRun(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var notes notes[Deleted]
	w := start(t, s, Config{Hooks: Hooks{Deleted: notes.add}})
	uid := w.node().UID
	if ref, err := w.c.OwnerReference(t.Context(), node1); err != nil || ref != (metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node1, UID: uid}) {
		t.Errorf("OwnerReference = %v, %v", ref, err)
	}
	s.ResetJournal()
	apitest.Remove[*corev1.Node](s, "", node1)
	w.c.Resync(node1)
	w.pass(time.Second)
	select {
	case <-w.done:
	default:
		t.Fatal("Run goes on after the Node was deleted")
	}
	if !errors.Is(w.err, ErrNodeDeleted) || !strings.Contains(w.err.Error(), node1) {
		t.Errorf("Run = %v, want ErrNodeDeleted of %s", w.err, node1)
	}
	w.expect(0, 1, 0)
	if deleted := notes.get(); len(deleted) != 1 || deleted[0] != (Deleted{NodeName: node1, UID: uid, Policy: DeletedExit}) {
		t.Errorf("the hook was told %+v", deleted)
	}
	if _, err := w.c.OwnerReference(t.Context(), node1); !apierrors.IsNotFound(err) {
		t.Errorf("OwnerReference: %v, want NotFound", err)
	}
	if err := w.c.Live(t.Context(), node1); err == nil {
		t.Error("Live after the Node was deleted")
	}
	if w.c.Node(node1) != nil {
		t.Error("Node returns one that is gone")
	}
}

func TestADeletedNodeIsRegisteredAgain(t *testing.T) {
	synctest.Test(t, testADeletedNodeIsRegisteredAgain)
}

func testADeletedNodeIsRegisteredAgain(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var registered notes[types.UID]
	w := start(t, s, Config{OnDeleted: DeletedReregister, Hooks: Hooks{Registered: func(r Registered) {
		if !r.Created {
			t.Errorf("told of adoption: %+v", r)
		}
		registered.add(r.Node.UID)
	}}})
	old := w.node().UID
	s.ResetJournal()
	apitest.Remove[*corev1.Node](s, "", node1)
	// It is noticed by the next report, at the latest after 7.5 minutes, and
	// created an interval and a half later at the latest.
	for apitest.Get[*corev1.Node](s, "", node1) == nil && len(s.Requests(posts)) == 0 {
		w.pass(time.Second)
		if time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) > 7*time.Minute+50*time.Second {
			t.Fatal("not registered again")
		}
		if n, late := len(s.Requests(patches)), w.c.Live(t.Context(), node1) != nil; n == 1 && !late && len(s.Requests(posts)) == 0 {
			t.Error("Live while the Node is gone and that is known")
		}
	}
	w.expect(1, 0, 1)
	if w.node().UID == old {
		t.Fatal("the Node is the old one")
	}
	if ref, err := w.c.OwnerReference(t.Context(), node1); err != nil || ref.UID != w.node().UID {
		t.Errorf("OwnerReference = %v, %v, want UID %s", ref, err, w.node().UID)
	}
	if taints := w.node().Spec.Taints; len(taints) == 0 || taints[0].Key != "example.com/virtual" {
		t.Errorf("taints after registering again: %v", taints)
	}
	if diff := cmp.Diff([]types.UID{old, w.node().UID}, registered.get()); diff != "" {
		t.Errorf("the hook was told (-want +got):\n%s", diff)
	}
}

func TestADeletedNodeIsIdle(t *testing.T) { synctest.Test(t, testADeletedNodeIsIdle) }

func testADeletedNodeIsIdle(t *testing.T) {
	s := apitest.New(apitest.Options{})
	w := start(t, s, Config{OnDeleted: DeletedIdle})
	apitest.Remove[*corev1.Node](s, "", node1)
	w.c.Resync(node1)
	w.pass(time.Second)
	w.expect(1, 1, 0)
	w.c.Trigger(node1)
	w.pass(24 * time.Hour)
	w.expect(0, 0, 0)
	if status, _ := w.c.Status(node1); status.Phase != PhaseDeleted {
		t.Errorf("the status is %+v", status)
	}
	if err := w.c.Check(nil); err != nil {
		t.Errorf("Check = %v while there is nothing to do", err)
	}
	w.c.Resync(node1) // a look at nothing
	w.pass(time.Hour)
	w.expect(0, 1, 0)
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1}})
	w.c.Resync(node1)
	w.pass(time.Second)
	w.expect(0, 1, 1)
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		t.Errorf("Ready is %+v after somebody created the Node", ready)
	}
	if err := w.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// A Node that was replaced gets no write before it is adopted.
func TestAReplacedNodeIsAdopted(t *testing.T) { synctest.Test(t, testAReplacedNodeIsAdopted) }

func testAReplacedNodeIsAdopted(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var steps notes[string]
	var other types.UID
	w := start(t, s, Config{Hooks: Hooks{
		Registered: func(r Registered) { steps.add(fmt.Sprintf("registered %s %v", r.Node.UID, r.Created)) },
		Replaced: func(r Replaced) {
			steps.add(fmt.Sprintf("replaced %s by %s", r.OldUID, r.NewUID))
			if n := apitest.Get[*corev1.Node](s, "", node1); len(n.Status.Conditions) != 0 {
				t.Errorf("the other Node was written before it was adopted: %v", n.Status.Conditions)
			}
		},
	}})
	old := w.node().UID
	s.ResetJournal()
	apitest.Remove[*corev1.Node](s, "", node1)
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1, Labels: map[string]string{"theirs": "x"}}})
	other = w.node().UID
	w.pass(7*time.Minute + 40*time.Second)
	// The report meets the other Node, is refused, and is followed by a read
	// and the first write.
	var calls []string
	for _, r := range s.Requests(apitest.Match{}) {
		calls = append(calls, fmt.Sprint(r.Verb, " ", r.Code))
	}
	if want := []string{"patch 422", "get 200", "patch 200"}; !slices.Equal(calls[:3], want) {
		t.Errorf("the calls were %v, want %v", calls, want)
	}
	n := w.node()
	if n.UID != other || n.Labels["theirs"] != "x" || n.Labels["example.com/pool"] != "a" || len(n.Status.Conditions) != 4 {
		t.Errorf("after adoption: %+v", n)
	}
	if len(n.Spec.Taints) != 0 {
		t.Errorf("adoption has set taints: %v", n.Spec.Taints)
	}
	want := []string{
		fmt.Sprintf("registered %s true", old),
		fmt.Sprintf("replaced %s by %s", old, other),
		fmt.Sprintf("registered %s false", other),
	}
	if diff := cmp.Diff(want, steps.get()); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	if ref, err := w.c.OwnerReference(t.Context(), node1); err != nil || ref.UID != other {
		t.Errorf("OwnerReference = %v, %v", ref, err)
	}
}

// A Node that exists is adopted with the labels, taints and conditions
// that others gave it, and without those that an earlier run has left.
func TestAnExistingNodeIsAdoptedAsItIs(t *testing.T) {
	synctest.Test(t, testAnExistingNodeIsAdoptedAsItIs)
}

func testAnExistingNodeIsAdoptedAsItIs(t *testing.T) {
	s := apitest.New(apitest.Options{})
	theirs := corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse, Reason: "KernelHasNoDeadlock"}
	s.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node1, Labels: map[string]string{"team": "a", "example.com/pool": "old", "node-role.kubernetes.io/worker": ""}, Annotations: map[string]string{"note": "x"}},
		Spec:       corev1.NodeSpec{Unschedulable: true, ProviderID: "theirs://1", Taints: []corev1.Taint{{Key: "admin", Effect: corev1.TaintEffectNoExecute}}},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{"example.com/dongle": resource.MustParse("3")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}, theirs},
		},
	})
	before := w1(s)
	w := start(t, s, Config{})
	w.expect(1, 1, 1)
	n := w.node()
	want := map[string]string{"team": "a", "example.com/pool": "a", "node-role.kubernetes.io/worker": "", "kubernetes.io/hostname": node1}
	if diff := cmp.Diff(want, n.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Spec, n.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(theirs, w.condition("KernelDeadlock")); diff != "" {
		t.Errorf("their condition (-want +got):\n%s", diff)
	}
	if dongle := n.Status.Capacity["example.com/dongle"]; dongle.Value() != 3 || n.Annotations["note"] != "x" {
		t.Errorf("capacity %v, annotations %v", n.Status.Capacity, n.Annotations)
	}
	if ready := w.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue || time.Since(ready.LastTransitionTime.Time) > time.Second {
		t.Errorf("Ready is %+v", ready)
	}
	var kinds []string
	for _, c := range n.Status.Conditions {
		if c.Type != "KernelDeadlock" {
			kinds = append(kinds, string(c.Type))
		}
	}
	if diff := cmp.Diff([]string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"}, kinds); diff != "" {
		t.Errorf("our conditions (-want +got):\n%s", diff)
	}
}

func w1(s *apitest.Server) *corev1.Node { return apitest.Get[*corev1.Node](s, "", node1) }

// With a node's credentials nothing is sent that the API server forbids.
func TestNodeCredentialsSendNothingForbidden(t *testing.T) {
	synctest.Test(t, testNodeCredentialsSendNothingForbidden)
}

func testNodeCredentialsSendNothingForbidden(t *testing.T) {
	s := apitest.New(apitest.Options{})
	extra, health := &knob[map[string]string]{}, &knob[error]{}
	var notes notes[string]
	w := start(t, s, Config{
		OnDeleted: DeletedReregister, OnShutdown: ShutdownNotReady,
		HealthChecks: []HealthCheck{healthCheck(health)},
		Setters: []Setter{StandardLabels(), func(_ context.Context, n *corev1.Node) error {
			for key, value := range extra.get() {
				n.Labels[key] = value
			}
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprint("later", len(extra.get())), Effect: corev1.TaintEffectNoSchedule})
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1"}}
			return nil
		}},
		ErrorHandler: func(_ context.Context, err error, _ string) { notes.add(err.Error()) },
	})
	act := []func(){
		func() { extra.set(map[string]string{"node-role.kubernetes.io/x": "", "zone": "a"}) },
		func() { extra.set(map[string]string{"node-restriction.kubernetes.io/y": "", "zone": "b"}) },
		func() { health.set(errors.New("down")) },
		func() { apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Spec.Taints = nil }) },
		func() {
			apitest.Edit(s, "", node1, func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/admin"] = "" })
		},
		func() { apitest.Remove[*corev1.Node](s, "", node1); w.c.Resync(node1) },
		func() { health.set(nil) },
		func() {
			apitest.Remove[*corev1.Node](s, "", node1)
			s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1, Labels: map[string]string{"k8s.io/z": ""}}})
		},
	}
	for _, do := range act {
		do()
		w.c.Trigger(node1)
		w.pass(20 * time.Minute)
	}
	if w.node().Labels["zone"] != "b" || w.node().Labels["node-restriction.kubernetes.io/y"] != "" {
		t.Errorf("labels are %v", w.node().Labels)
	}
	if err := w.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	for _, r := range s.Requests(apitest.Match{}) {
		if r.Code == 403 || r.Verb == "delete" {
			t.Errorf("forbidden: %v", r)
		}
	}
	if ready := w.condition(corev1.NodeReady); ready.Reason != ReasonShutdown {
		t.Errorf("Ready is %+v after the end", ready)
	}
	if reported := notes.get(); len(reported) == 0 || !strings.Contains(reported[0], "node-role.kubernetes.io/x") {
		t.Errorf("the forbidden label was reported as %q", reported)
	}
}

// Events come after the API server has accepted the change, and once.
func TestEventsComeOnceAfterTheChangeIsAccepted(t *testing.T) {
	synctest.Test(t, testEventsComeOnceAfterTheChangeIsAccepted)
}

func testEventsComeOnceAfterTheChangeIsAccepted(t *testing.T) {
	s := apitest.New(apitest.Options{})
	health := &knob[error]{}
	rec := &recorder{}
	w := start(t, s, Config{HealthChecks: []HealthCheck{healthCheck(health)}, EventRecorder: rec})
	rec.expect(t, "Normal NodeRegistered Register", "Normal NodeReady UpdateStatus")

	remove := s.Inject(apitest.Fault{Match: patches, Status: statuserr.InternalError("down")})
	health.set(errors.New("no runtime " + strings.Repeat("at all ", 1000)))
	w.pass(time.Minute)
	rec.expect(t)
	if n := len(s.Requests(patches)); n < 5 {
		t.Errorf("%d tries in a minute", n)
	}
	remove()
	w.pass(10 * time.Second)
	rec.expect(t, "Warning NodeNotReady UpdateStatus")
	w.pass(time.Hour)
	rec.expect(t)
	health.set(nil)
	w.pass(11 * time.Second)
	rec.expect(t, "Normal NodeReady UpdateStatus")
	if rec.about != (corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node1, UID: w.node().UID}) {
		t.Errorf("the events are about %+v", rec.about)
	}
}

// recorder is an events.EventRecorder that remembers.
type recorder struct {
	mu    sync.Mutex
	seen  []string
	about corev1.ObjectReference
}

func (r *recorder) Eventf(regarding, _ runtime.Object, kind, reason, action, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if note := fmt.Sprintf(note, args...); len(note) > 1024 {
		note = fmt.Sprintf("of %d bytes, which the API server refuses: ", len(note))
		r.seen = append(r.seen, note)
	}
	r.seen = append(r.seen, kind+" "+reason+" "+action)
	r.about = *regarding.(*corev1.ObjectReference)
}

// expect checks the events since the last time.
func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.seen); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	r.seen = nil
}

// Nothing but Run blocks: before Run, while it runs, after it.
func TestOnlyRunBlocks(t *testing.T) { synctest.Test(t, testOnlyRunBlocks) }

func testOnlyRunBlocks(t *testing.T) {
	s := apitest.New(apitest.Options{})
	c, err := New(Config{Client: s.Client(apitest.User{}).CoreV1(), NodeName: node1})
	if err != nil {
		t.Fatal(err)
	}
	all := func(when string) {
		begin := time.Now()
		for _, name := range []string{node1, "nobody"} {
			for range 1000 {
				c.Trigger(name)
				c.Resync(name)
			}
			c.Status(name)
			c.Node(name)
			_ = c.Live(t.Context(), name)
			_, _ = c.OwnerReference(t.Context(), name)
			c.EventHandler().OnAdd(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "x", ResourceVersion: "1"}}, false)
			c.EventHandler().OnDelete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "x", ResourceVersion: "1"}})
		}
		_ = c.Add("other")
		c.Remove("other")
		_ = c.Check(nil)
		if took := time.Since(begin); took != 0 {
			t.Errorf("%s: blocked for %v", when, took)
		}
	}
	all("before Run")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	synctest.Wait()
	all("during Run")
	s.Inject(apitest.Fault{Hang: true})
	time.Sleep(10 * time.Minute)
	all("while the API hangs")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	all("after Run")
	if err := c.Add(node1); !errors.Is(err, ErrStopped) {
		t.Errorf("Add after Run = %v, want ErrStopped", err)
	}
	if err := c.Check(nil); err == nil {
		t.Error("Check is content after Run has returned")
	}
}

// A hook must not block. While one does, Check says that the process must be restarted, and
// Live that the lease must not be renewed, each after exactly the time that rounds may take.
func TestCheckNoticesALoopThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rounds atomic.Int64
		var last atomic.Pointer[time.Time] // the round before the one that hangs
		failing := func(context.Context, string) error { return errors.New("not well") }
		w := start(t, apitest.New(apitest.Options{}), Config{
			Workers: 1, HealthChecks: []HealthCheck{failing}, ErrorHandler: func(context.Context, error, string) {},
			Hooks: Hooks{SetterFailed: func(SetterFailed) {
				if rounds.Add(1) == 5 {
					time.Sleep(time.Hour)
				}
				last.Store(ptr.To(time.Now()))
			}},
		})
		for rounds.Load() < 5 {
			w.pass(100 * time.Millisecond)
		}
		limit := last.Load().Add(3*DefaultSyncInterval + 2*functionTimeout + 3*callTimeout)
		w.pass(time.Until(limit) - time.Second)
		if err := errors.Join(w.c.Live(t.Context(), node1), w.c.Check(nil)); err != nil {
			t.Errorf("a second before the limit: %v", err)
		}
		w.pass(2 * time.Second)
		if w.c.Live(t.Context(), node1) == nil {
			t.Error("Live is content a second after the limit")
		}
		w.pass(DefaultSyncInterval) // the beginning of the round was progress too
		if w.c.Check(nil) == nil {
			t.Error("Check is content")
		}
		w.pass(time.Hour)
		if err := errors.Join(w.c.Live(t.Context(), node1), w.c.Check(nil)); err != nil {
			t.Errorf("after the hook has returned: %v", err)
		}
	})
}
