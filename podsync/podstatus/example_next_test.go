// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A provider reports that a container runs. The patch holds the difference to the
// stored status, and a second report of the same sends nothing.
func ExampleNext() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "8e3a", Generation: 1},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "nginx:1.29"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	report := corev1.PodStatus{
		PodIP: "10.0.0.7",
		ContainerStatuses: []corev1.ContainerStatus{{
			Name:  "nginx",
			Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}},
	}
	update := podstatus.Update{Observed: report, Now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}

	next, problems := podstatus.Next(pod, update)
	fmt.Println(next.Phase, len(problems))
	for _, c := range next.Conditions {
		fmt.Println(c.Type, c.Status)
	}
	fmt.Println(podstatus.Patch(pod, &next) != nil)

	pod.Status = next // as the API server stored it
	next, _ = podstatus.Next(pod, update)
	fmt.Println(podstatus.Patch(pod, &next) != nil)
	// Output:
	// Running 0
	// PodReadyToStartContainers True
	// Initialized True
	// ContainersReady True
	// Ready True
	// true
	// false
}
