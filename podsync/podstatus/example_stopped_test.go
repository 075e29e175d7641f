// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A pod is deleted and its runtime has confirmed that no container runs, but the end
// of the second container was not observed: that is no success.
func ExampleUpdate_stopped() {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: running}, {Name: "b", State: running}},
		},
	}
	report := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
		{Name: "a", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed"}}},
	}}

	next, _ := podstatus.Next(pod, podstatus.Update{Observed: report, Stopped: true, Now: time.Now()})
	fmt.Println(next.Phase)
	for _, c := range next.ContainerStatuses {
		fmt.Println(c.Name, c.State.Terminated.ExitCode, c.State.Terminated.Reason)
	}
	// Output:
	// Failed
	// a 0 Completed
	// b 137 ContainerStatusUnknown
}
