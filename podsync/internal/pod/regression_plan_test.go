// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Defects that this package has had itself, as far as they show without goroutines
// and clocks.

// A pod that was gone, as the cache knew by a list, came back with the late
// answer to a write.
func TestLateAnswerDoesNotRevive(t *testing.T) {
	s := runningPod().says(exited(1, false))
	c := s.writeStarted(tick, Patch, wallAt(tick))
	s.api.cached = false
	s.markDeleted(tick)
	resp := s.Pod().DeepCopy()
	resp.ResourceVersion = "40"
	s.statusStored(tick, c, resp, true)
	if !s.gone() {
		t.Error("the answer to a PATCH")
	}
	s.writeStarted(tick, Get, wallAt(tick))
	resp = resp.DeepCopy()
	resp.ResourceVersion = "50"
	s.finishGet(tick, 0, resp)
	if !s.gone() {
		t.Error("the answer to a GET")
	}
}

// A part of a status that the API server drops was sent again without end.
func TestWhatTheServerDropsIsSentOnce(t *testing.T) {
	s := runningPod().says(unready())
	for n := range 2 {
		if got := s.decideWrite(tick); got.Op != Patch {
			t.Fatalf("write %d is %q, want PATCH", n+1, got.Op)
		}
		c := s.writeStarted(tick, Patch, wallAt(tick))
		resp := s.Pod().DeepCopy()
		resp.ResourceVersion = "40" // of the first one; the second one changes nothing
		s.statusStored(tick, c, resp, false)
	}
	if got := s.decideWrite(tick + s.r.Retry.Cap); got.Op != "" {
		t.Errorf("write 3 is %q", got.Op)
	}
	s.now(func(p *corev1.Pod) { p.ResourceVersion = "50" })
	if got := s.decideWrite(tick + s.r.Retry.Cap); got.Op != Patch {
		t.Errorf("after somebody else's write: %q, want PATCH", got.Op)
	}
}

// Without generations the changes of a pod that was adopted went unnoticed,
// those while the process was down too.
func TestUpdatesOfAdoptedPodsWithoutGeneration(t *testing.T) {
	zero := func(p *corev1.Pod) { p.Generation = 0 }
	s := adopted(runs(), ran, zero)
	if got := s.decideCall(tick, true); got.Op != Update {
		t.Errorf("after the adoption: %q, want Update", got.Op)
	}
	s.calls(Update, 0, runs())
	if s.changed() {
		t.Error("changed at once")
	}
	if s.now(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }); !s.changed() {
		t.Error("a new image does not count as a change")
	}
}

// Nor did they end a backoff.
func TestBackoffEndsWithoutGeneration(t *testing.T) {
	s := fresh(func(p *corev1.Pod) { p.Generation = 0 }).calls(Start, 0, errFailed)
	if s.now(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }); s.call.retryAt == 0 {
		t.Error("a label ends it")
	}
	if s.now(func(p *corev1.Pod) { p.Spec.Containers[0].Image, p.ResourceVersion = "other", "30" }); s.call.retryAt != 0 {
		t.Error("a new image does not end it")
	}
}

// Grace periods that are no time.Duration.
func TestGracePeriods(t *testing.T) {
	for n, want := range map[int64]time.Duration{
		math.MinInt64: MinGrace, -10_000_000_000: MinGrace, -1: MinGrace, 0: MinGrace, 1: time.Second, 30: 30 * time.Second,
		10_000_000_000: Horizon / time.Second * time.Second, math.MaxInt64: Horizon / time.Second * time.Second,
	} {
		if got := SpecGrace(testPod(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &n })); got != want {
			t.Errorf("of the spec, %d s: %v, want %v", n, got, want)
		}
		if got := graceOf(testPod(func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = &n })); got != want {
			t.Errorf("of a deletion, %d s: %v, want %v", n, got, want)
		}
	}
}
