// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

func endOf(code int32, reason, id string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, ContainerID: id}}
}

// An end that was seen is final: a runtime that has forgotten it does not take it away.
func TestAnEndThatWasSeenIsFinal(t *testing.T) {
	unknown := func(id string) corev1.ContainerState {
		return endOf(podstatus.ExitCodeUnknown, podstatus.ReasonContainerStatusUnknown, id)
	}
	for name, tc := range map[string]struct {
		stored, observed corev1.ContainerStatus
		want             int32
	}{
		"forgotten":            {corev1.ContainerStatus{State: endOf(0, "Completed", "c1")}, corev1.ContainerStatus{State: unknown("")}, 0},
		"forgotten, with ID":   {corev1.ContainerStatus{State: endOf(0, "Completed", "c1")}, corev1.ContainerStatus{State: unknown("c1")}, 0},
		"another container":    {corev1.ContainerStatus{State: endOf(0, "Completed", "c1")}, corev1.ContainerStatus{State: unknown("c2")}, 137},
		"another run":          {corev1.ContainerStatus{State: endOf(0, "Completed", "")}, corev1.ContainerStatus{State: unknown(""), RestartCount: 1}, 137},
		"the same end":         {corev1.ContainerStatus{State: endOf(2, "Error", "c1")}, corev1.ContainerStatus{State: endOf(2, "Error", "c1")}, 2},
		"it is known at last":  {corev1.ContainerStatus{State: unknown("c1")}, corev1.ContainerStatus{State: endOf(3, "Error", "c1")}, 3},
		"nobody has seen it":   {corev1.ContainerStatus{State: unknown("c1")}, corev1.ContainerStatus{State: unknown("c1")}, 137},
		"killed, as is stored": {corev1.ContainerStatus{State: endOf(137, "OOMKilled", "c1")}, corev1.ContainerStatus{State: unknown("c1")}, 137},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c"}}}}
		tc.stored.Name, tc.observed.Name = "c", "c"
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{tc.stored}
		next, problems := podstatus.Next(pod, podstatus.Update{Observed: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{tc.observed}}})
		end := next.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != tc.want || len(problems) > 0 {
			t.Errorf("%s: %+v %v", name, end, problems)
		}
		if name == "killed, as is stored" && end.Reason != "OOMKilled" {
			t.Errorf("%s: reason %s", name, end.Reason)
		}
	}
}

// The end of the run before stays known while the container waits to be started again.
func TestALastEndThatWasSeenIsFinal(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: endOf(4, "Error", "c1")}}
	observed := corev1.ContainerStatus{
		Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: endOf(podstatus.ExitCodeUnknown, podstatus.ReasonContainerStatusUnknown, "c1"),
	}
	next, _ := podstatus.Next(pod, podstatus.Update{Observed: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{observed}}})
	if last := next.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 4 {
		t.Errorf("last end %+v", last)
	}
}

// A regular container that has started proves that the init containers had completed, except
// before all containers start again.
func TestAnInitContainerThatIsForgottenHasNotFailed(t *testing.T) {
	spec := &corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "c"}}}
	init := []corev1.ContainerStatus{{Name: "i", State: endOf(podstatus.ExitCodeUnknown, podstatus.ReasonContainerStatusUnknown, "")}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	for name, tc := range map[string]struct {
		regular corev1.ContainerStatus
		want    corev1.PodPhase
		ended   bool
	}{
		"it runs":                    {corev1.ContainerStatus{State: running}, corev1.PodRunning, false},
		"it has ended":               {corev1.ContainerStatus{State: endOf(0, "", "")}, corev1.PodSucceeded, true},
		"it waits":                   {corev1.ContainerStatus{State: waiting}, corev1.PodFailed, true},
		"it waits, and ran before":   {corev1.ContainerStatus{State: waiting, LastTerminationState: endOf(0, "", "")}, corev1.PodFailed, true},
		"it was ended for a restart": {corev1.ContainerStatus{State: endOf(0, podstatus.ReasonRestartingAllContainers, "")}, corev1.PodFailed, true},
	} {
		tc.regular.Name = "c"
		status := &corev1.PodStatus{InitContainerStatuses: init, ContainerStatuses: []corev1.ContainerStatus{tc.regular}}
		if phase, ended := podstatus.Phase(spec, status), podstatus.Ended(spec, status); phase != tc.want || ended != tc.ended {
			t.Errorf("%s: %s, ended: %v", name, phase, ended)
		}
	}
}

// A pod that was rejected has no exit codes, unless something of it ran.
func TestARejectedPodHasNoContainerStatuses(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: podstatus.ReasonContainerCreating}}
	for name, tc := range map[string]struct {
		stored, observed []corev1.ContainerStatus
		want             int
	}{
		"nothing was written":   {nil, []corev1.ContainerStatus{{Name: "c"}}, 0},
		"it waited":             {[]corev1.ContainerStatus{{Name: "c", State: waiting}}, nil, 0},
		"it ran":                {nil, []corev1.ContainerStatus{{Name: "c", State: endOf(7, "Error", "")}}, 1},
		"it ran, as was stored": {[]corev1.ContainerStatus{{Name: "c", State: endOf(7, "Error", "")}}, nil, 1},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: tc.stored}}
		next, _ := podstatus.Next(pod, podstatus.Update{
			Stopped: true, Unstarted: true, Observed: corev1.PodStatus{ContainerStatuses: tc.observed},
			Failure: &podstatus.Failure{Reason: "OutOfcpu", Message: "no"},
		})
		if len(next.ContainerStatuses) != tc.want || next.Phase != corev1.PodFailed || next.Reason != "OutOfcpu" {
			t.Errorf("%s: %+v", name, next)
		}
		if tc.want > 0 && next.ContainerStatuses[0].State.Terminated.ExitCode != 7 {
			t.Errorf("%s: %+v", name, next.ContainerStatuses)
		}
	}
}

// A pod that is deleted before anything of it ran has no exit codes. What the API has of its
// containers does not disappear.
func TestContainersOfADeletedPodStillWait(t *testing.T) {
	pulling := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	for name, tc := range map[string]struct {
		stored, observed []corev1.ContainerStatus
		want             string
	}{
		"nothing was written": {nil, []corev1.ContainerStatus{{Name: "c"}}, podstatus.ReasonContainerCreating},
		"it waited":           {[]corev1.ContainerStatus{{Name: "c", State: pulling}}, []corev1.ContainerStatus{{Name: "c"}}, "ImagePullBackOff"},
		"it waits":            {nil, []corev1.ContainerStatus{{Name: "c", State: pulling}}, "ImagePullBackOff"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: tc.stored}}
		pod.DeletionTimestamp = &metav1.Time{}
		update := podstatus.Update{Stopped: true, Unstarted: true, Observed: corev1.PodStatus{ContainerStatuses: tc.observed}}
		next, _ := podstatus.Next(pod, update)
		if list := next.ContainerStatuses; next.Phase != corev1.PodFailed || len(list) != 1 || list[0].State.Waiting == nil || list[0].State.Waiting.Reason != tc.want {
			t.Errorf("%s: %+v", name, next)
		}
		pod.DeletionTimestamp = nil
		if ended, _ := podstatus.Next(pod, update); len(ended.ContainerStatuses) > 0 {
			t.Errorf("%s: without a deletion: %+v", name, ended)
		}
		pod.DeletionTimestamp, pod.Status = &metav1.Time{}, next
		if again, _ := podstatus.Next(pod, update); podstatus.Patch(pod, &again) != nil {
			t.Errorf("%s: it is written again: %+v", name, again)
		}
	}
}

// A generation that the pod does not have was observed before the API server was restored.
func TestObservedGenerationOfBeforeARestore(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for stored, want := range map[int64]int64{1: 1, 2: 2, 3: 1} {
		pod.Status.ObservedGeneration = stored
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, ObservedGeneration: stored}}
		next, _ := podstatus.Next(pod, podstatus.Update{Generation: 1, Now: time.Unix(1, 0)})
		got := next.ObservedGeneration
		for _, c := range next.Conditions {
			if c.Type == corev1.PodReady && c.ObservedGeneration != got {
				t.Error(fmt.Sprint("Ready has observed ", c.ObservedGeneration, ", and the pod ", got))
			}
		}
		if got != want {
			t.Errorf("stored %d: %d, want %d", stored, got, want)
		}
	}
}
