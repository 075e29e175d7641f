// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Tests that kill mutants of the drivers, one by one, without Run.

// atRest returns a Controller that does not run.
func atRest(t *testing.T, edit ...func(*Config)) *Controller {
	t.Helper()
	cfg := Config{Client: silent{}, Provider: empty{}, NodeName: "n"}
	for _, f := range edit {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.run.callCtx, c.run.apiCtx = t.Context(), t.Context()
	return c
}

// podOf returns a pod of the node n with a resourceVersion.
func podOf(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
}

// clean makes no pod dirty, as after a round of the loop.
func (b *table) clean() {
	for _, t := range b.dirty {
		t.dirty = false
	}
	b.dirty = nil
}

// An informer that others use goes on after Run, and so may the provider's reports.
func TestNothingIsRecordedAfterRun(t *testing.T) {
	c := atRest(t)
	a := podOf("a", "u")
	c.intake.onUpdate(a)
	c.pods.clean()
	c.close()
	c.intake.onUpdate(podOf("b", "v"))
	c.intake.handlers().OnUpdate(a, podOf("a", "w"))
	c.intake.onDelete(a)
	c.Report(State{Ref: Ref{UID: "x", Namespace: "ns", Name: "c"}})
	c.Report(State{Ref: RefOf(a), Stopped: true})
	if len(c.pods.pods) != 1 || len(c.pods.dirty) != 0 || len(c.reports.early) != 0 || !c.pods.pods["u"].Cached() {
		t.Errorf("%d pods, %d are dirty, %d reports wait", len(c.pods.pods), len(c.pods.dirty), len(c.reports.early))
	}
}

// A report that came during a List is older than those that come after it, whenever its pod is seen.
func TestAReportThatCameDuringAListIsNotTheLastOne(t *testing.T) {
	c := atRest(t)
	pod := podOf("a", "u")
	says := func(message string) State {
		return State{Ref: RefOf(pod), Status: corev1.PodStatus{Message: message}}
	}
	begin := c.pods.tick()
	c.Report(says("during the List"))
	list := says("in the List")
	c.lister.apply(c.pods.moment(), begin, &list, c.reports.prints.of(&list))
	orphan := c.pods.pods["u"]
	if got := orphan.LastReport().Message; got != "during the List" {
		t.Errorf("the last report is the one %s", got)
	}
	c.Report(says("after the List"))
	c.intake.onUpdate(pod)
	if got := orphan.LastReport().Message; got != "after the List" {
		t.Errorf("the last report is the one %s", got)
	}
}

// An event without news, such as the echo of a write, must not leave the pod decoded. A pod that
// waits for the loop is decoded once.
func TestAnEventWithoutNewsLeavesThePodEncoded(t *testing.T) {
	c := atRest(t)
	obj, err := Compact(podOf("a", "u"))
	if err != nil {
		t.Fatal(err)
	}
	decoded := func() bool {
		a, b := c.pods.pods["u"].Version(), c.pods.pods["u"].Version()
		return a.Open() == b.Open() // else each copy has decoded it for itself
	}
	c.intake.onUpdate(obj)
	if c.intake.onUpdate(obj); !decoded() {
		t.Error("the loop must decode it again")
	}
	c.pods.clean()
	if c.intake.onUpdate(obj); decoded() {
		t.Error("it stays decoded")
	}
}

// A failing is a Checkpoint whose Remove returns err.
type failing struct {
	Checkpoint
	err error
}

func (f *failing) Remove(context.Context, types.UID) error { return f.err }

// Records that can't be removed are reported once in each outage of the disk.
func TestEachOutageOfTheCheckpointIsReported(t *testing.T) {
	told := 0
	disk := &failing{}
	c := atRest(t, func(cfg *Config) {
		cfg.Checkpoint = disk
		cfg.ErrorHandler = func(context.Context, error, string) { told++ }
	})
	for i, err := range []error{errFailed, errFailed, nil, errFailed} {
		disk.err = err
		c.records.removeAll(t.Context(), map[types.UID]*record{"u": {}})
		if want := []int{1, 1, 1, 2}[i]; told != want {
			t.Errorf("after %d calls %d errors are reported, want %d", i+1, told, want)
		}
	}
}
