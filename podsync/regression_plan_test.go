// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// Defects that this package has had itself, as far as they show without goroutines
// and clocks.

// A pod that was gone, as the cache knew by a list, came back with the late
// answer to a write.
func TestLateAnswerDoesNotRevive(t *testing.T) {
	s := running().says(exited(1, false))
	c := s.writeStarted(tick, OpPatch)
	s.api.cached = false
	s.markDeleted(tick)
	resp := s.pod().DeepCopy()
	resp.ResourceVersion = "40"
	s.statusStored(s.r, tick, c, resp, true)
	if !s.removed() {
		t.Error("the answer to a PATCH")
	}
	s.writeStarted(tick, OpGet)
	resp = resp.DeepCopy()
	resp.ResourceVersion = "50"
	s.finishGet(s.r, tick, resp)
	if !s.removed() {
		t.Error("the answer to a GET")
	}
}

// A part of a status that the API server drops was sent again without end.
func TestWhatTheServerDropsIsSentOnce(t *testing.T) {
	s := running().says(unready())
	for n := range 2 {
		if got, _ := s.decideWrite(s.r, tick); got.op != OpPatch {
			t.Fatalf("write %d is %q, want PATCH", n+1, got.op)
		}
		c := s.writeStarted(tick, OpPatch)
		resp := s.pod().DeepCopy()
		resp.ResourceVersion = "40" // of the first one; the second one changes nothing
		s.statusStored(s.r, tick, c, resp, false)
	}
	if got, _ := s.decideWrite(s.r, tick+s.r.retry.Cap); got.op != "" {
		t.Errorf("write 3 is %q", got.op)
	}
	s.now(func(p *corev1.Pod) { p.ResourceVersion = "50" })
	if got, _ := s.decideWrite(s.r, tick+s.r.retry.Cap); got.op != OpPatch {
		t.Errorf("after somebody else's write: %q, want PATCH", got.op)
	}
}

// Without generations the changes of a pod that was adopted went unnoticed,
// those while the process was down too.
func TestUpdatesOfAdoptedPodsWithoutGeneration(t *testing.T) {
	zero := func(p *corev1.Pod) { p.Generation = 0 }
	s := adopted(runs(), ran, zero)
	if got := s.decideCall(s.r, tick, true); got.op != OpUpdate {
		t.Errorf("after the adoption: %q, want Update", got.op)
	}
	s.calls(OpUpdate, 0, runs())
	if s.changed(s.r) {
		t.Error("changed at once")
	}
	if s.now(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }); !s.changed(s.r) {
		t.Error("a new image does not count as a change")
	}
}

// Nor did they end a backoff.
func TestBackoffEndsWithoutGeneration(t *testing.T) {
	s := fresh(func(p *corev1.Pod) { p.Generation = 0 }).calls(OpStart, 0, errFailed)
	if s.now(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }); s.call.retryAt == 0 {
		t.Error("a label ends it")
	}
	if s.now(func(p *corev1.Pod) { p.Spec.Containers[0].Image, p.ResourceVersion = "other", "30" }); s.call.retryAt != 0 {
		t.Error("a new image does not end it")
	}
}

// A queue that was never empty kept the memory of all earlier entries.
func TestQueueThatIsNeverEmpty(t *testing.T) {
	var q fifo
	var tracks [3]podState
	for i := range 100_000 {
		q.push(&tracks[i%3])
		if i >= 10 && q.pop() != &tracks[(i-10)%3] {
			t.Fatal("out of order")
		}
	}
	if n := cap(q.items); n > 100 {
		t.Errorf("ten wait in %d places", n)
	}
}

// The failure of a request that ended just after its pod was forgotten never
// ended: no later outage was reported.
func TestFailureOfAForgottenPod(t *testing.T) {
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	told := 0
	handler := func(context.Context, error, string) { told++ }
	for name, of := range map[string]func(*Controller, *podState) (*report.Group, *report.Member){
		"provider": func(c *Controller, t *podState) (*report.Group, *report.Member) {
			return &c.providerErrors, &t.sched.callErrs
		},
		"API": func(c *Controller, t *podState) (*report.Group, *report.Member) {
			return &c.apiErrors, &t.sched.apiErrs
		},
	} {
		var c Controller
		var forgotten podState
		c.forget(ctx, &forgotten)
		group, late := of(&c, &forgotten)
		group.Fail(ctx, handler, late, errFailed, "late")
		told = 0
		var next report.Member
		group.Fail(ctx, handler, &next, errFailed, "the next outage")
		if told != 1 {
			t.Errorf("%s: the next outage was told of %d times", name, told)
		}
	}
}

// Grace periods that are no time.Duration.
func TestGracePeriods(t *testing.T) {
	for n, want := range map[int64]time.Duration{
		math.MinInt64: minGrace, -10_000_000_000: minGrace, -1: minGrace, 0: minGrace, 1: time.Second, 30: 30 * time.Second,
		10_000_000_000: horizon / time.Second * time.Second, math.MaxInt64: horizon / time.Second * time.Second,
	} {
		if got := specGrace(testPod(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &n })); got != want {
			t.Errorf("of the spec, %d s: %v, want %v", n, got, want)
		}
		if got := graceOf(testPod(func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = &n })); got != want {
			t.Errorf("of a deletion, %d s: %v, want %v", n, got, want)
		}
	}
}
