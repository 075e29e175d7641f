// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPhase(t *testing.T) {
	for _, tc := range []struct {
		pod    string // see testPod
		status string // see testStatus
		want   corev1.PodPhase
		ended  bool
	}{
		// Nothing known, nothing started.
		{"Always c1", "", "Pending", false},
		{"Always c1", "c1=none", "Pending", false},
		{"Always c1 c2", "c1=ready", "Pending", false},
		{"Always c1 c2", "c1=ready c2=wait", "Pending", false},
		{"Never c1 c2", "c1=0 c2=wait", "Pending", false},

		{"Always c1 c2", "c1=run c2=ready", "Running", false},
		{"Always c1 c2", "c1=crash:1 c2=ready", "Running", false},
		{"Always c1", "c1=crash:1", "Running", false},
		{"Always c1", "c1=0", "Running", false},
		{"Always c1", "c1=1", "Running", false},
		{"OnFailure c1", "c1=1", "Running", false},
		{"OnFailure c1", "c1=crash:1", "Running", false},
		{"OnFailure c1 c2", "c1=0 c2=run", "Running", false},
		{"OnFailure c1 c2", "c1=0 c2=crash:3", "Running", false},
		{"Never c1 c2", "c1=1 c2=run", "Running", false},

		{"OnFailure c1", "c1=0", "Succeeded", true},
		{"OnFailure c1", "c1=crash:0", "Succeeded", true},
		{"Never c1", "c1=0", "Succeeded", true},
		{"Never c1 c2", "c1=0 c2=0", "Succeeded", true},
		{"Never c1 c2", "c1=0 c2=1", "Failed", true},
		{"Never c1", "c1=137", "Failed", true},

		// Init containers.
		{"Never i1 c1", "i1=none c1=wait", "Pending", false},
		{"Never i1 c1", "i1=run c1=wait", "Pending", false},
		{"Never i1 c1", "i1=0 c1=wait", "Pending", false},
		{"Never i1 c1", "c1=wait", "Pending", false},
		{"Never i1 c1", "i1=1 c1=wait", "Failed", true},
		{"Never i1 i2 c1", "i1=1 i2=wait c1=wait", "Failed", true},
		{"Never i1 c1", "i1=crash:1 c1=wait", "Failed", true},
		{"OnFailure i1 c1", "i1=1 c1=wait", "Pending", false},
		{"Always i1 c1", "i1=crash:1 c1=wait", "Pending", false},
		{"Never i1 c1", "i1=0 c1=ready", "Running", false},
		// A runtime that forgets init containers, or runs them again.
		{"Never i1 c1", "c1=ready", "Running", false},
		{"Never i1 c1", "c1=0", "Succeeded", true},
		{"Always i1 c1", "i1=run c1=crash:0", "Running", false},

		// Sidecars.
		{"Always s1 c1", "s1=start c1=wait", "Pending", false},
		{"Always s1 c1", "s1=wait c1=wait", "Pending", false},
		{"Always s1 c1", "s1=run c1=run", "Running", false},
		{"Always s1 c1", "s1=start c1=run", "Running", false},
		{"Never s1 c1", "s1=crash:1 c1=run", "Running", false},
		{"Never s1 c1", "s1=run c1=0", "Running", true},
		{"Never s1 c1", "s1=0 c1=0", "Succeeded", true},
		{"Never s1 c1", "s1=wait c1=0", "Succeeded", true},
		{"Never s1 c1", "s1=crash:1 c1=0", "Succeeded", true},
		{"Never s1 c1", "s1=137 c1=0", "Succeeded", true},
		{"Never s1 c1", "s1=0 c1=2", "Failed", true},
		{"Never s1 c1", "s1=0 c1=wait", "Pending", false},
		{"Never s1 i1 c1", "s1=run i1=1 c1=wait", "Failed", true},

		// A sidecar, or an init container, that has not begun holds up a pod whose
		// containers are not known.
		{"Never s1 c1", "s1=wait c1=none", "Pending", false},
		{"Never i1 c1", "i1=wait c1=none", "Pending", false},

		// An init container that restarts the pod has not failed.
		{"Never i1 c1", "i1=all c1=wait", "Pending", false},
		{"Never", "", "Pending", false},

		// Ephemeral containers don't count.
		{"Never c1 e1", "c1=0 e1=run", "Succeeded", true},
	} {
		pod, status := testPod(tc.pod), testStatus(tc.status)
		if got := Phase(&pod.Spec, &status); got != tc.want {
			t.Errorf("%s, %s: Phase = %s, want %s", tc.pod, tc.status, got, tc.want)
		}
		if got := Ended(&pod.Spec, &status); got != tc.ended {
			t.Errorf("%s, %s: Ended = %v, want %v", tc.pod, tc.status, got, tc.ended)
		}
	}
}

func TestMayBeRunning(t *testing.T) {
	for status, want := range map[string]bool{
		"":               false,
		"c1=wait i1=0":   false,
		"c1=crash:1":     false,
		"c1=0 c2=ready":  true,
		"i1=run c1=wait": true,
		"c1=0 e1=run":    true,
	} {
		if s := testStatus(status); MayBeRunning(&s) != want {
			t.Errorf("%q: MayBeRunning = %t", status, !want)
		}
	}
}

// TestPhaseRestartRules has a container that restarts on 42 alone, and one whose
// 43 restarts the pod.
func TestPhaseRestartRules(t *testing.T) {
	pod := testPod("Never c1 c2")
	never := corev1.ContainerRestartPolicyNever
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].RestartPolicy = &never
	}
	pod.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{rule(restart, in, 42)}
	pod.Spec.Containers[1].RestartPolicyRules = []corev1.ContainerRestartRule{rule(restartAll, in, 43)}
	for status, want := range map[string]corev1.PodPhase{
		"c1=42 c2=0":        "Running",
		"c1=crash:42 c2=0":  "Running",
		"c1=1 c2=0":         "Failed",
		"c1=0 c2=43":        "Running", // c1, too, is started again
		"c1=crash:42 c2=43": "Running",
		"c1=0 c2=42":        "Failed",
		"c1=0 c2=0":         "Succeeded",
	} {
		s := testStatus(status)
		if got := Phase(&pod.Spec, &s); got != want {
			t.Errorf("%s: Phase = %s, want %s", status, got, want)
		}
	}
	s := testStatus("c1=137 c2=run")
	s.ContainerStatuses[1] = testContainer("c2", "137")
	for i := range s.ContainerStatuses {
		s.ContainerStatuses[i].State.Terminated.Reason = ReasonRestartingAllContainers
	}
	if got := Phase(&pod.Spec, &s); got != corev1.PodRunning {
		t.Errorf("all containers restarting: Phase = %s, want Running", got)
	}
}

// A failed init container is no end of the pod if all containers start again.
func TestAnInitContainerThatIsRestartedWithThePodHasNotFailed(t *testing.T) {
	pod := testPod("Never i1 c1")
	never := corev1.ContainerRestartPolicyNever
	pod.Spec.Containers[0].RestartPolicy = &never
	pod.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{rule(restartAll, in, 43)}
	for status, want := range map[string]corev1.PodPhase{
		"i1=1 c1=43": corev1.PodRunning,
		"i1=1 c1=42": corev1.PodFailed,
	} {
		s := testStatus(status)
		if got := Phase(&pod.Spec, &s); got != want {
			t.Errorf("%s: Phase = %s, want %s", status, got, want)
		}
	}
}

func TestFinalPhase(t *testing.T) {
	for _, tc := range []struct {
		pod, status string
		want        corev1.PodPhase
	}{
		{"Always c1", "c1=0", "Succeeded"},
		{"Always c1", "c1=crash:0", "Succeeded"},
		{"Always c1", "c1=1", "Failed"},
		{"Always c1", "c1=wait", "Failed"},
		{"Always c1", "", "Failed"},
		{"Always c1 c2", "c1=0", "Failed"},
		{"Never i1 c1", "i1=0 c1=0", "Succeeded"},
		{"Never i1 c1", "c1=0", "Succeeded"},
		{"Never i1 c1", "i1=1 c1=0", "Failed"},
		{"Never i1 c1", "i1=run c1=0", "Failed"},
		{"Never s1 c1", "s1=137 c1=0", "Succeeded"},
		{"Never s1 c1", "s1=run c1=0", "Succeeded"},
		{"Never c1 e1", "c1=0 e1=1", "Succeeded"},
		{"Never", "", "Failed"},
	} {
		pod, status := testPod(tc.pod), testStatus(tc.status)
		if got := FinalPhase(&pod.Spec, &status); got != tc.want {
			t.Errorf("%s, %s: FinalPhase = %s, want %s", tc.pod, tc.status, got, tc.want)
		}
	}
}

func TestHasStarted(t *testing.T) {
	for status, want := range map[string]bool{
		"":                   false,
		"Pending":            false,
		"Pending c1=wait":    false,
		"Pending c1=none":    false,
		"Running":            true,
		"Pending i1=run":     true,
		"Pending c1=crash:1": true,
		"Pending e1=0":       true,
		"Failed c1=wait":     false,
	} {
		s := testStatus(status)
		if got := HasStarted(&s); got != want {
			t.Errorf("%q: HasStarted = %v, want %v", status, got, want)
		}
	}
	s := testStatus("Pending c1=wait")
	s.ContainerStatuses[0].ContainerID = "x://1"
	if !HasStarted(&s) {
		t.Error("a container with an ID was started")
	}
}
