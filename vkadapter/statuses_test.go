// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/lineartest"
)

func TestNamesOfContainers(t *testing.T) {
	pod := []corev1.Container{{Name: "a"}, {Name: "b"}}
	for name, c := range map[string]struct{ reported, want []string }{
		"names of the back end": {[]string{"job-1", "job-2"}, []string{"a", "b"}},
		"another order":         {[]string{"b", "a"}, []string{"b", "a"}},
		"one of them fits":      {[]string{"job-1", "a"}, []string{"job-1", "a"}},
		"fewer":                 {[]string{"job-1"}, []string{"job-1"}},
		"more":                  {[]string{"x", "y", "z"}, []string{"x", "y", "z"}},
	} {
		var statuses []corev1.ContainerStatus
		for _, reported := range c.reported {
			statuses = append(statuses, corev1.ContainerStatus{Name: reported})
		}
		rename(statuses, pod)
		var got []string
		for _, s := range statuses {
			got = append(got, s.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v became %v, want %v", name, c.reported, got, c.want)
		}
	}
}

func TestContainersOfAPodThatSucceeded(t *testing.T) {
	code := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7, Reason: "Error"}}
	got := complete([]corev1.ContainerStatus{
		{Name: "waits", Ready: true, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}},
		{Name: "ended", State: code},
	}, []corev1.Container{{Name: "ended"}, {Name: "waits"}, {Name: "missing", Image: "i"}})
	if len(got) != 3 || got[0].Ready || got[0].State.Terminated == nil || got[0].State.Waiting != nil || got[0].State.Terminated.Reason != "Completed" {
		t.Fatalf("%+v", got)
	}
	if *got[1].State.Terminated != *code.Terminated {
		t.Errorf("the end that was reported became %+v", got[1].State.Terminated)
	}
	if got[2].Name != "missing" || got[2].Image != "i" || got[2].State.Terminated == nil || got[2].State.Terminated.ExitCode != 0 {
		t.Errorf("a container that was not reported is %+v", got[2])
	}
}

// TestStatesOfALargePodAreLinear: the state of each pod is made in each List, and a user may make a pod of
// thousands of containers.
func TestStatesOfALargePodAreLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	for name, own := range map[string]bool{"names of the pod": false, "names of the back end": true} {
		t.Run(name, func(t *testing.T) {
			lineartest.Check(t, 2000, func(n int) func() {
				pod := webPod("1", "")
				pod.Spec.Containers = nil
				status := corev1.PodStatus{Phase: corev1.PodSucceeded}
				for i := range n {
					name := fmt.Sprintf("container-%05d", i)
					pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
					if own {
						name = fmt.Sprintf("processes-%05d", i)
					}
					status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: name})
				}
				slices.Reverse(status.ContainerStatuses)
				h := remember()
				h.want(refWeb, pod)
				h.polled(refWeb, &status)
				return func() {
					st := h.state(refWeb)
					if len(st.Status.ContainerStatuses) != n || !st.Stopped {
						t.Errorf("%d statuses, stopped: %v", len(st.Status.ContainerStatuses), st.Stopped)
					}
				}
			})
		})
	}
}
