// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
	"github.com/kubewright/kubewright/podsync"
)

func TestShutdownPeriods(t *testing.T) {
	var p shutdownPeriods
	for value, want := range map[string]string{
		"0=20s":                  "0=20s",
		"1000=10s,0=1m,-5=2s":    "-5=2s,0=1m0s,1000=10s",
		"":                       "not PRIORITY=DURATION",
		"0":                      "not PRIORITY=DURATION",
		"x=1s":                   "not PRIORITY=DURATION",
		"3000000000=1s":          "not PRIORITY=DURATION",
		"0=1ms":                  "at least a second",
		"0=1s,0=2s":              "there twice",
		"2000000000=5s,1000=10s": "1000=10s,2000000000=5s",
	} {
		got := ""
		if err := p.Set(value); err != nil {
			got = err.Error()
		} else {
			got = p.String()
		}
		if !strings.Contains(got, want) {
			t.Errorf("Set(%q) gives %q, want %q", value, got, want)
		}
	}
	p = shutdownPeriods{{-5, time.Second}, {0, time.Second}, {1000, time.Second}}
	for priority, want := range map[int32]int{-10: 0, -5: 0, -1: 0, 0: 1, 999: 1, 1000: 2, 2000000000: 2} {
		if got := p.of(&corev1.Pod{Spec: corev1.PodSpec{Priority: &priority}}); got != want {
			t.Errorf("a pod of priority %d has period %d, want %d", priority, got, want)
		}
	}
	if got := p.of(&corev1.Pod{}); got != 1 {
		t.Errorf("a pod without priority has period %d, want 1", got)
	}
}

func TestAPeriodLimitsAnyGracePeriod(t *testing.T) {
	p := shutdownPeriods{{0, 20500 * time.Millisecond}}
	for own, want := range map[int64]time.Duration{0: time.Second, 5: 5 * time.Second, 20: 20 * time.Second, 21: 20500 * time.Millisecond, 1e10: 20500 * time.Millisecond, math.MaxInt64: 20500 * time.Millisecond} {
		if got := p.grace(0, &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &own}}); got != want {
			t.Errorf("a pod with %d seconds has %v, want %v", own, got, want)
		}
	}
}

// The pods end before the program does, and the API server knows it: statuses are
// written while the node is not Ready, with the lease that lets it write.
func TestAShutdownEndsThePods(t *testing.T) {
	k := newNode(t, "--shutdown-grace-period-by-pod-priority=0=20s,1000=20s")
	k.bind("service", corev1.RestartPolicyAlways, "exec sleep 1000")
	k.await("service", "to run", phase(corev1.PodRunning))
	k.stop()
	pod := k.await("service", "to have failed", phase(corev1.PodFailed))
	if pod.Status.Reason != "Terminated" || pod.Status.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("the status is %+v", pod.Status)
	}
	exampletest.NothingRefused(t, k.api)
}

// New settings restart the program and leave the pods alone. SIGTERM ends them, by the
// program with the new settings too.
func TestNewSettingsDoNotEndThePods(t *testing.T) {
	api := exampletest.Server(t, "../rbac/kubelet.yaml")
	k := newNodeWith(t, api, supervised, "--config-map=kubewright/kubelet/settings.yaml", "--config-soak=1s", "--shutdown-grace-period-by-pod-priority=0=20s")
	k.bind("service", corev1.RestartPolicyAlways, "exec sleep 1000")
	before := k.await("service", "to run", phase(corev1.PodRunning))
	rollOut(api, "labels: {room: blue}")
	exampletest.Eventually(t, api, "good settings", func() bool {
		c := settingsCondition(api)
		return c.Status == corev1.ConditionTrue && c.Reason == "Good"
	})
	if !strings.Contains(k.program.Output(), "supervisor: ") {
		t.Error("the settings came without a restart")
	}
	after := apitest.Get[*corev1.Pod](api, "default", "service")
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; after.Status.Phase != corev1.PodRunning || a.ContainerID != b.ContainerID || a.RestartCount != 0 {
		t.Errorf("the pod was %+v and is %s, %+v", b, after.Status.Phase, a)
	}
	k.stop()
	k.await("service", "to have failed", phase(corev1.PodFailed))
	exampletest.NothingRefused(t, api)
}

// podsToEnd are pods that end some time after they were evicted.
type podsToEnd struct {
	start time.Time
	pods  map[podsync.Ref]*corev1.Pod
	takes map[string]time.Duration
	ends  map[podsync.Ref]time.Time
	log   []string
}

func (p *podsToEnd) add(name string, priority int32, takes time.Duration) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: new(int64(30))}}
	p.pods[podsync.Ref{Name: name}], p.takes[name] = pod, takes
}

func (p *podsToEnd) All() iter.Seq2[podsync.Ref, podsync.Info] {
	return func(yield func(podsync.Ref, podsync.Info) bool) {
		for _, ref := range slices.SortedFunc(maps.Keys(p.pods), func(a, b podsync.Ref) int { return strings.Compare(a.Name, b.Name) }) {
			info := podsync.Info{Stage: podsync.StageRunning, Pod: p.pods[ref]}
			if end, ok := p.ends[ref]; ok && !time.Now().Before(end) {
				info.Stage = podsync.StageStopped
			}
			if !yield(ref, info) {
				return
			}
		}
	}
}

func (p *podsToEnd) Evict(ref podsync.Ref, e podsync.Eviction) error {
	p.log = append(p.log, fmt.Sprintf("%v %s %v", time.Since(p.start).Round(time.Second), ref.Name, e.Grace))
	p.ends[ref] = time.Now().Add(min(p.takes[ref.Name], e.Grace))
	return nil
}

func TestPodsEndInTheOrderOfTheirPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &podsToEnd{start: time.Now(), pods: map[podsync.Ref]*corev1.Pod{}, takes: map[string]time.Duration{}, ends: map[podsync.Ref]time.Time{}}
		p.add("batch", -10, 2*time.Second)
		p.add("critical", 2000000000, time.Second)
		p.add("slow", 0, time.Hour) // killed when its period is over
		p.add("web", 1000, 3*time.Second)
		periods := shutdownPeriods{{0, 20 * time.Second}, {1000, 10 * time.Second}, {2000000000, 5 * time.Second}}
		periods.drain(t.Context(), p)
		want := []string{"0s batch 20s", "0s slow 20s", "20s web 10s", "23s critical 5s"}
		if !slices.Equal(p.log, want) {
			t.Errorf("evictions %q, want %q", p.log, want)
		}
		if d := time.Since(p.start).Round(time.Second); d != 24*time.Second {
			t.Errorf("drained after %v, want 24s", d)
		}
	})
}

// A provider that never reports an end costs the periods, and no more.
func TestADrainEndsWithItsPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &podsToEnd{start: time.Now(), pods: map[podsync.Ref]*corev1.Pod{}, takes: map[string]time.Duration{}, ends: map[podsync.Ref]time.Time{}}
		p.add("stuck", 0, time.Hour)
		periods := shutdownPeriods{{0, 20 * time.Second}, {1000, 10 * time.Second}}
		stuck := stuckPods{p}
		periods.drain(t.Context(), stuck)
		if d := time.Since(p.start); d != 30*time.Second {
			t.Errorf("drained after %v, want 30s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		periods.drain(ctx, stuck)
		if d := time.Since(begin); d != time.Second {
			t.Errorf("a drain that was called off took %v", d)
		}
	})
}

// A program that is asked to end soon after its start does not hold the lease yet.
func TestADrainAsksAgainForAPodThatWasNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &podsToEnd{start: time.Now(), pods: map[podsync.Ref]*corev1.Pod{}, takes: map[string]time.Duration{}, ends: map[podsync.Ref]time.Time{}}
		p.add("web", 0, 2*time.Second)
		shutdownPeriods{{0, 20 * time.Second}}.drain(t.Context(), gated{p, p.start.Add(5 * time.Second)})
		if want := []string{"5s web 20s"}; !slices.Equal(p.log, want) {
			t.Errorf("evictions %q, want %q", p.log, want)
		}
		if d := time.Since(p.start).Round(time.Second); d != 7*time.Second {
			t.Errorf("drained after %v, want 7s", d)
		}
	})
}

// gated are pods of a controller that may not act until a time.
type gated struct {
	*podsToEnd
	until time.Time
}

func (p gated) Evict(ref podsync.Ref, e podsync.Eviction) error {
	if time.Now().Before(p.until) {
		return podsync.ErrGateClosed
	}
	return p.podsToEnd.Evict(ref, e)
}

// stuckPods never end.
type stuckPods struct{ *podsToEnd }

func (p stuckPods) Evict(podsync.Ref, podsync.Eviction) error { return nil }
