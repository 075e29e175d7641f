// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReady(t *testing.T) {
	for _, tc := range []struct {
		pod, status       string
		gates             []corev1.PodCondition // Status "" = named by the spec, absent from the pod
		containers, ready string                // "True", or "False Reason: message"
	}{
		{"Always c1", "Pending", nil, "False UnknownContainerStatuses", "False UnknownContainerStatuses"},
		{"Always c1", "Running c1=ready", nil, "True", "True"},
		{"Always c1 c2", "Running c1=ready c2=run", nil, "False ContainersNotReady: containers with unready status: [c2]", ""},
		{"Always c1 c2 c3", "Running c1=wait c2=ready", nil, "False ContainersNotReady: containers with unready status: [c1], containers with unknown status: [c3]", ""},
		{"Always s1 c1", "Running s1=run c1=ready", nil, "False ContainersNotReady: containers with unready status: [s1]", ""},
		{"Always s1 c1", "Running s1=ready c1=ready", nil, "True", "True"},
		{"Always i1 c1", "Running i1=0 c1=ready", nil, "True", "True"},
		{"Always i1 c1", "Running c1=ready", nil, "True", "True"},
		{"Never c1 e1", "Running c1=ready e1=run", nil, "True", "True"},

		// k/k#108594: no ready pod with a terminal phase.
		{"Never c1", "Failed c1=ready", nil, "False PodFailed", ""},
		{"Never c1", "Succeeded c1=0", nil, "False PodCompleted", ""},

		{"Always c1", "Running c1=ready", []corev1.PodCondition{{Type: "a/b", Status: "True"}}, "True", "True"},
		{"Always c1", "Running c1=ready", []corev1.PodCondition{{Type: "a/b", Status: "False"}, {Type: "c/d"}}, "True",
			"False ReadinessGatesNotReady: readiness gates not True: [a/b], readiness gates without a condition: [c/d]"},
		{"Always c1", "Running c1=ready", []corev1.PodCondition{{Type: "a/b", Status: "Unknown"}}, "True",
			"False ReadinessGatesNotReady: readiness gates not True: [a/b]"},
		{"Always c1", "Running c1=run", []corev1.PodCondition{{Type: "a/b", Status: "False"}}, "False ContainersNotReady: containers with unready status: [c1]", ""},
	} {
		pod, status := testPod(tc.pod), testStatus(tc.status)
		for _, gate := range tc.gates {
			pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: gate.Type})
			if gate.Status != "" {
				status.Conditions = append(status.Conditions, gate)
			}
		}
		if tc.ready == "" {
			tc.ready = tc.containers
		}
		if got := spell(ContainersReady(&pod.Spec, &status)); got != tc.containers {
			t.Errorf("%s, %s: ContainersReady = %s, want %s", tc.pod, tc.status, got, tc.containers)
		}
		if got := spell(Ready(&pod.Spec, &status)); got != tc.ready {
			t.Errorf("%s, %s: Ready = %s, want %s", tc.pod, tc.status, got, tc.ready)
		}
	}
}

func TestInitialized(t *testing.T) {
	for _, tc := range []struct{ pod, status, want string }{
		{"Always c1", "Pending", "True"},
		{"Always i1 c1", "Pending", "False UnknownContainerStatuses: containers with unknown status: [i1]"},
		{"Always i1 i2 c1", "Pending i1=0", "False ContainersNotInitialized: containers with unknown status: [i2]"},
		{"Always i1 i2 c1", "Pending i1=0 i2=run", "False ContainersNotInitialized: containers with incomplete status: [i2]"},
		{"Always i1 c1", "Pending i1=1", "False ContainersNotInitialized: containers with incomplete status: [i1]"},
		{"Always i1 c1", "Pending i1=0 c1=wait", "True"},
		{"Always s1 c1", "Pending s1=start c1=wait", "False ContainersNotInitialized: containers with incomplete status: [s1]"},
		{"Always s1 c1", "Pending s1=run c1=wait", "True"},
		// A regular container that was started proves it.
		{"Always i1 s1 c1", "Running s1=crash:1 c1=run", "True"},
		{"Always i1 c1", "Running i1=run c1=crash:1", "True"},
		{"Never i1 c1", "Succeeded c1=0", "True PodCompleted"},
		{"Never i1 c1", "Failed i1=1 c1=wait", "False ContainersNotInitialized: containers with incomplete status: [i1]"},
	} {
		pod, status := testPod(tc.pod), testStatus(tc.status)
		if got := spell(Initialized(&pod.Spec, &status)); got != tc.want {
			t.Errorf("%s, %s: Initialized = %s, want %s", tc.pod, tc.status, got, tc.want)
		}
	}
	pod, status := testPod("Always i1 c1"), testStatus("Running i1=run c1=wait")
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
	if got := spell(Initialized(&pod.Spec, &status)); got != "True" {
		t.Errorf("a pod that was initialized has %s when its init container runs again", got)
	}
}

func TestReadyToStartContainers(t *testing.T) {
	for status, want := range map[string]string{"Pending": "False", "Pending c1=wait": "False", "Pending i1=run": "True", "Running": "True", "Failed c1=1": "False"} {
		s := testStatus(status)
		if got := spell(ReadyToStartContainers(&s)); got != want {
			t.Errorf("%s: %s, want %s", status, got, want)
		}
	}
	s := testStatus("Pending")
	s.PodIP = "10.0.0.1"
	if got := spell(ReadyToStartContainers(&s)); got != "True" {
		t.Errorf("with an address: %s", got)
	}
}

func spell(c corev1.PodCondition) string {
	s := string(c.Status)
	if c.Reason != "" {
		s += " " + c.Reason
	}
	if c.Message != "" {
		s += ": " + c.Message
	}
	return s
}

// TestManyContainersShortMessage: a condition names some of hundreds.
func TestManyContainersShortMessage(t *testing.T) {
	pod := testPod("Always c")
	for i := range 300 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("container-%d", i)})
	}
	pod.Status = testStatus("Running c=run")
	if c := Ready(&pod.Spec, &pod.Status); len(c.Message) > 1000 {
		t.Errorf("a message of %d bytes: %s", len(c.Message), c.Message)
	}
}

// TestConditionOwnership: which conditions of a report are written, and what
// becomes of the stored ones.
func TestConditionOwnership(t *testing.T) {
	then := metav1.NewTime(t0)
	for _, tc := range []struct {
		name     string
		stored   *corev1.PodCondition
		observed []corev1.PodCondition
		stopped  bool
		check    corev1.PodConditionType
		want     string // see spell; "" = absent
		problems int
	}{
		{name: "foreign, unreported", stored: &corev1.PodCondition{Type: "a/b", Status: "True", Reason: "R"}, check: "a/b", want: "True R"},
		{name: "new one of the provider", observed: []corev1.PodCondition{{Type: "a/b", Status: "True", Reason: "R"}}, check: "a/b", want: "True R"},
		{name: "one of the provider", stored: &corev1.PodCondition{Type: "a/b", Status: "True"}, observed: []corev1.PodCondition{{Type: "a/b", Status: "False"}}, check: "a/b", want: "False"},
		{name: "PodScheduled is the scheduler's", stored: &corev1.PodCondition{Type: "PodScheduled", Status: "True"}, observed: []corev1.PodCondition{{Type: "PodScheduled", Status: "False"}}, check: "PodScheduled", want: "True"},
		{name: "Ready is computed", observed: []corev1.PodCondition{{Type: "Ready", Status: "True"}}, check: "Ready", want: "False UnknownContainerStatuses"},
		{name: "Ready set by the node controller is repaired", stored: &corev1.PodCondition{Type: "Ready", Status: "True", Reason: "NodeNotReady"}, check: "Ready", want: "False UnknownContainerStatuses"},
		{name: "sandbox as the provider says", observed: []corev1.PodCondition{{Type: "PodReadyToStartContainers", Status: "True"}}, check: "PodReadyToStartContainers", want: "True"},
		{name: "no sandbox after the end", observed: []corev1.PodCondition{{Type: "PodReadyToStartContainers", Status: "True"}}, stopped: true, check: "PodReadyToStartContainers", want: "False"},
		{name: "DisruptionTarget waits for the end", observed: []corev1.PodCondition{{Type: "DisruptionTarget", Status: "True"}}, check: "DisruptionTarget"},
		{name: "DisruptionTarget at the end", observed: []corev1.PodCondition{{Type: "DisruptionTarget", Status: "True"}}, stopped: true, check: "DisruptionTarget", want: "True"},
		{name: "DisruptionTarget of others", stored: &corev1.PodCondition{Type: "DisruptionTarget", Status: "True", Reason: "EvictionByEvictionAPI"}, observed: []corev1.PodCondition{}, check: "DisruptionTarget", want: "True EvictionByEvictionAPI"},
		{name: "resize over", stored: &corev1.PodCondition{Type: "PodResizePending", Status: "True"}, observed: []corev1.PodCondition{}, check: "PodResizePending"},
		{name: "resize, no opinion", stored: &corev1.PodCondition{Type: "PodResizePending", Status: "True"}, check: "PodResizePending", want: "True"},
		{name: "no name", observed: []corev1.PodCondition{{Type: "not a name", Status: "True"}}, check: "not a name", problems: 1},
		{name: "no status", observed: []corev1.PodCondition{{Type: "a/b"}}, check: "a/b", problems: 1},
		{name: "negative generation", observed: []corev1.PodCondition{{Type: "a/b", Status: "True", ObservedGeneration: -1}}, check: "a/b", problems: 1},
		{name: "twice", observed: []corev1.PodCondition{{Type: "a/b", Status: "True"}, {Type: "a/b", Status: "False"}}, check: "a/b", want: "True", problems: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod("Always c1")
			if tc.stored != nil {
				tc.stored.LastTransitionTime = then
				pod.Status.Conditions = append(pod.Status.Conditions, *tc.stored)
			}
			next, problems := Next(pod, Update{Observed: corev1.PodStatus{Conditions: tc.observed}, Stopped: tc.stopped, Now: t1})
			got, at := "", indexOf(next.Conditions, tc.check)
			if at >= 0 {
				got = spell(next.Conditions[at])
			}
			if got != tc.want {
				t.Errorf("condition %q, want %q", got, tc.want)
			}
			if len(problems) != tc.problems {
				t.Errorf("problems %v, want %d", problems, tc.problems)
			}
			if tc.stored != nil && at >= 0 {
				moved := !next.Conditions[at].LastTransitionTime.Equal(&then)
				if changed := next.Conditions[at].Status != tc.stored.Status; moved != changed {
					t.Errorf("transition time moved: %v, status changed: %v", moved, changed)
				}
			}
		})
	}
}

// TestObservedGeneration: it follows the accepted spec, in the status and in the
// conditions written here, and never falls.
func TestObservedGeneration(t *testing.T) {
	pod := testPod("Always c1")
	pod.Generation = 4
	pod.Status.Conditions = []corev1.PodCondition{{Type: "PodScheduled", Status: "True"}}
	report := testStatus("c1=ready")
	for _, step := range []struct{ generation, want int64 }{{1, 1}, {3, 3}, {2, 3}, {0, 3}, {4, 4}} {
		next, _ := Next(pod, Update{Observed: report, Generation: step.generation, Now: t1})
		if next.ObservedGeneration != step.want {
			t.Errorf("generation %d: observedGeneration %d, want %d", step.generation, next.ObservedGeneration, step.want)
		}
		for _, c := range next.Conditions {
			want := step.want
			if c.Type == corev1.PodScheduled {
				want = 0
			}
			if c.ObservedGeneration != want {
				t.Errorf("generation %d: %s has %d, want %d", step.generation, c.Type, c.ObservedGeneration, want)
			}
		}
		pod.Status = next
	}
}

// TestGateFlip: a gate that another component flips makes Ready follow, without a
// word from the provider, and makes no other difference.
func TestGateFlip(t *testing.T) {
	pod := testPod("Always c1")
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb/healthy"}}
	u := Update{Observed: testStatus("c1=ready"), Now: t0}
	pod.Status, _ = Next(pod, u)
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "lb/healthy", Status: corev1.ConditionTrue})
	u.Now = t1
	next, _ := Next(pod, u)
	const want = `{"metadata":{"uid":"u"},"status":{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-05-01T12:01:00Z","reason":null,"message":null}]}}`
	if got := string(Patch(pod, &next)); got != want {
		t.Errorf("patch %s\nwant  %s", got, want)
	}
}
