// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A spec is a container of a pod with its kind.
type spec struct {
	*corev1.Container
	kind core.Kind
}

// containersOf returns the containers of a pod in the order of decide.
func containersOf(s *corev1.PodSpec) (list []spec) {
	for i := range s.InitContainers {
		k := core.Init
		if podstatus.IsSidecar(&s.InitContainers[i]) {
			k = core.Sidecar
		}
		list = append(list, spec{&s.InitContainers[i], k})
	}
	for i := range s.Containers {
		list = append(list, spec{&s.Containers[i], core.Regular})
	}
	for i := range s.EphemeralContainers {
		list = append(list, spec{(*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon), core.Ephemeral})
	}
	return list
}

func grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	return max(limited(seconds), time.Second)
}

// longest limits durations to 73 years, as podsync does.
const longest time.Duration = 1 << 61

// limited returns n seconds, and at most longest. The API does not limit grace periods: the
// largest integer often stands for no limit, and would become a negative time.
func limited(n int64) time.Duration {
	return time.Duration(min(n, int64(longest/time.Second))) * time.Second
}
