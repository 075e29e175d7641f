// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/lineartest"
)

// largePod returns a pod of n containers, n init containers and n conditions, and a report that
// has them in reverse order.
func largePod(n int) (*corev1.Pod, Update) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}}
	var report corev1.PodStatus
	for i := range n {
		name := fmt.Sprint("container-", i)
		ended := corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
		pod.Spec.Containers, report.ContainerStatuses = append(pod.Spec.Containers, corev1.Container{Name: name}), append(report.ContainerStatuses, ended)
		pod.Spec.InitContainers, report.InitContainerStatuses = append(pod.Spec.InitContainers, corev1.Container{Name: name}), append(report.InitContainerStatuses, ended)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("example.com/", i)), Status: corev1.ConditionTrue})
	}
	slices.Reverse(report.ContainerStatuses)
	slices.Reverse(report.InitContainerStatuses)
	return pod, Update{Observed: report, Stopped: true, Now: time.Unix(1, 0)}
}

// TestStatusesOfALargePodAreLinear: the API server stores pods of thousands of containers, and other
// pods must not wait for them.
func TestStatusesOfALargePodAreLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	for name, prepare := range map[string]func(n int) func(){
		"the next status": func(n int) func() {
			pod, update := largePod(n)
			return func() {
				if next, problems := Next(pod, update); len(problems) > 0 || next.Phase != corev1.PodSucceeded {
					t.Error(next.Phase, problems)
				}
			}
		},
		"a patch": func(n int) func() {
			pod, update := largePod(n)
			next, _ := Next(pod, update)
			slices.Reverse(next.Conditions)
			return func() { Patch(pod, &next) }
		},
		"a comparison": func(n int) func() {
			pod, update := largePod(n)
			next, _ := Next(pod, update)
			other := *next.DeepCopy()
			slices.Reverse(other.Conditions)
			return func() {
				if !Equal(&next, &other) {
					t.Error("the statuses differ")
				}
			}
		},
		"a validation": func(n int) func() {
			pod, update := largePod(n)
			next, _ := Next(pod, update)
			pod.Status = next
			return func() {
				if errs := Validate(pod, &update.Observed); len(errs) > 0 {
					t.Error(errs)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { lineartest.Check(t, 1000, prepare) })
	}
}
