// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A report with defects is stored without them, and they are named.
func ExampleNext_problems() {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	report := corev1.PodStatus{
		PodIP:             "not-an-address",
		ContainerStatuses: []corev1.ContainerStatus{{Name: "a", RestartCount: -1}, {Name: "z"}},
	}
	next, problems := podstatus.Next(pod, podstatus.Update{Observed: report, Now: time.Now()})
	for _, problem := range problems {
		fmt.Println(problem)
	}
	fmt.Println(next.Phase, next.ContainerStatuses[0].State.Waiting.Reason, len(podstatus.Validate(pod, &next)))
	// Output:
	// status.podIP: Invalid value: "not-an-address": must be an IP address
	// status.containerStatuses[0].restartCount: Invalid value: -1: must not be negative
	// status.containerStatuses[1].name: Invalid value: "z": not a container of the spec: podsync leaves such a status out, although the API server would store it
	// Pending ContainerCreating 0
}
