// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// store applies patch to pod as the API server does and returns the pod that a
// client reads back.
func store(t testing.TB, pod *corev1.Pod, patch []byte) *corev1.Pod {
	t.Helper()
	before, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
	if err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(after, out); err != nil {
		t.Fatalf("patched object %s: %v", after, err)
	}
	return out
}

// checkLife feeds a pod one arbitrary report after the other and checks after each
// the properties that hold for any report.
func checkLife(t testing.TB, d *dice) {
	t.Helper()
	pod := d.pod()
	for range 4 {
		u := d.update(&pod.Spec)
		podBefore, observedBefore := pod.DeepCopy(), u.Observed.DeepCopy()

		next, _ := Next(pod, u)
		if !equality.Semantic.DeepEqual(podBefore, pod) || !equality.Semantic.DeepEqual(observedBefore, &u.Observed) {
			t.Fatalf("Next changed its arguments:\n%s\n%s", cmp.Diff(podBefore, pod), cmp.Diff(observedBefore, &u.Observed))
		}
		if errs := Validate(pod, &next); len(errs) > 0 {
			t.Fatalf("Next returned what the API server refuses: %v", errs.ToAggregate())
		}
		checkNext(t, pod, u, &next)

		patch := Patch(pod, &next)
		if patch == nil {
			if !Equal(&pod.Status, &next) {
				t.Fatalf("no patch for a difference:\n%s", cmp.Diff(pod.Status, next))
			}
			continue
		}
		stored := store(t, pod, patch)
		if !Equal(&stored.Status, &next) {
			t.Fatalf("patch %s stores something else (-want +got):\n%s", patch, cmp.Diff(next, stored.Status))
		}
		if !equality.Semantic.DeepEqual(pod.Spec, stored.Spec) || !equality.Semantic.DeepEqual(pod.ObjectMeta, stored.ObjectMeta) {
			t.Fatalf("patch %s touches more than the status", patch)
		}

		u.Now = u.Now.Add(time.Hour)
		again, _ := Next(stored, u)
		if p := Patch(stored, &again); p != nil {
			t.Fatalf("the same report after it was stored makes another patch: %s", p)
		}

		if mirror, ok := mirrored(u, &stored.Status); ok {
			again, problems := Next(stored, mirror)
			if p := Patch(stored, &again); p != nil || len(problems) > 0 && !u.KeepPhase {
				t.Fatalf("the stored status as a report makes a patch, problems %v: %s", problems, p)
			}
		}

		minimal := Minimal(pod, &next)
		if p := Patch(pod, &minimal); p != nil {
			if back := store(t, pod, p); !Equal(&back.Status, &minimal) {
				t.Fatalf("minimal patch %s stores something else (-want +got):\n%s", p, cmp.Diff(minimal, back.Status))
			}
		}
		pod = stored
	}
}

// mirrored is u with the stored status, and those of its conditions that the report
// had, in the place of the report: who keeps no reports may use it. It is false for a
// report with invalid conditions.
func mirrored(u Update, stored *corev1.PodStatus) (Update, bool) {
	reported := u.Observed.Conditions
	for i := range reported {
		if len(checkCondition(nil, &reported[i])) > 0 {
			return u, false
		}
	}
	u.Observed = *stored
	u.Observed.Conditions = nil
	for _, c := range stored.Conditions {
		if indexOf(reported, c.Type) >= 0 {
			u.Observed.Conditions = append(u.Observed.Conditions, c)
		}
	}
	return u, true
}

// checkNext checks the promises of the package comment.
func checkNext(t testing.TB, pod *corev1.Pod, u Update, next *corev1.PodStatus) {
	t.Helper()
	old := &pod.Status
	switch {
	case IsTerminal(old.Phase) && (next.Phase != old.Phase || next.Reason != old.Reason || next.Message != old.Message):
		t.Fatalf("terminal phase %s became %s", old.Phase, next.Phase)
	case old.Phase == corev1.PodRunning && next.Phase == corev1.PodPending:
		t.Fatal("Running went back to Pending")
	case !IsTerminal(old.Phase) && IsTerminal(next.Phase) != u.Stopped:
		t.Fatalf("phase %s with Stopped %v", next.Phase, u.Stopped)
	}
	if next.ObservedGeneration < old.ObservedGeneration && old.ObservedGeneration <= pod.Generation {
		t.Fatal("observedGeneration fell")
	}
	if old.StartTime != nil && !old.StartTime.Equal(next.StartTime) {
		t.Fatal("start time moved")
	}
	if u.Stopped && MayBeRunning(next) {
		t.Fatal("a container runs in a stopped pod")
	}
	if next.Phase == corev1.PodSucceeded && old.Phase != corev1.PodSucceeded {
		for i := range pod.Spec.Containers {
			cs := statusesIn(next.ContainerStatuses).find(pod.Spec.Containers[i].Name)
			if cs == nil || cs.State.Terminated == nil || cs.State.Terminated.ExitCode != 0 {
				t.Fatalf("success without exit code 0 of %s", pod.Spec.Containers[i].Name)
			}
		}
	}
	for _, c := range next.Conditions {
		if IsTerminal(next.Phase) && (c.Type == corev1.PodReady || c.Type == corev1.ContainersReady) && c.Status == corev1.ConditionTrue {
			t.Fatalf("%s is True with phase %s", c.Type, next.Phase)
		}
		at := indexOf(old.Conditions, c.Type)
		if at < 0 {
			continue
		}
		was := old.Conditions[at]
		if c.ObservedGeneration < was.ObservedGeneration && was.ObservedGeneration <= pod.Generation {
			t.Fatalf("observedGeneration of %s fell", c.Type)
		}
		if c.Status == was.Status && !c.LastTransitionTime.Equal(&was.LastTransitionTime) {
			t.Fatalf("transition time of %s moved without a transition", c.Type)
		}
	}
	for _, c := range old.Conditions {
		at := indexOf(next.Conditions, c.Type)
		switch {
		case c.Type == corev1.PodScheduled, c.Type != corev1.DisruptionTarget && !computed(c.Type) && indexOf(u.Observed.Conditions, c.Type) < 0:
			if at < 0 || next.Conditions[at] != c {
				t.Fatalf("condition %s of another component was changed", c.Type)
			}
		}
	}
	for _, lists := range [][2][]corev1.ContainerStatus{
		{old.ContainerStatuses, next.ContainerStatuses}, {old.InitContainerStatuses, next.InitContainerStatuses}, {old.EphemeralContainerStatuses, next.EphemeralContainerStatuses},
	} {
		for i := range lists[0] {
			was := &lists[0][i]
			is := statusesIn(lists[1]).find(was.Name)
			if is == nil {
				t.Fatalf("the status of container %s disappeared", was.Name)
			}
			if is.RestartCount < was.RestartCount {
				t.Fatalf("restart count of %s fell from %d to %d", was.Name, was.RestartCount, is.RestartCount)
			}
		}
	}
}

func computed(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodReadyToStartContainers,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		return true
	}
	return false
}

// TestNextWhateverIsReported runs hundreds of arbitrary lives.
func TestNextWhateverIsReported(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		checkLife(t, diceOf(seed))
	}
}

// FuzzNext lets the fuzzer choose the lives.
func FuzzNext(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(diceOf(seed).data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkLife(t, &dice{data}) })
}
