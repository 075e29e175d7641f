// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// OOMScoreAdjust returns the value by which the kernel of Linux chooses a process to kill
// when the machine has no memory left, as the kubelet computes it: guaranteed pods last,
// then the containers that request the most. memory is that of the machine in bytes.
//
// A request of the pod as a whole that no container makes is divided among all of them
// (KEP-2837), and a sidecar is not killed before the regular containers (KEP-753).
func OOMScoreAdjust(pod *corev1.Pod, c *corev1.Container, memory int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	if p := pod.Spec.Priority; p != nil && *p >= 2_000_000_000 { // a node-critical pod
		return guaranteed
	}
	switch podstatus.QOSClass(&pod.Spec) {
	case corev1.PodQOSGuaranteed:
		return guaranteed
	case corev1.PodQOSBestEffort:
		return bestEffort
	}
	request := c.Resources.Requests.Memory().Value()
	isSidecar := false
	for i := range pod.Spec.InitContainers {
		isSidecar = isSidecar || pod.Spec.InitContainers[i].Name == c.Name && podstatus.IsSidecar(&pod.Spec.InitContainers[i])
	}
	if isSidecar {
		least := int64(-1)
		for i := range pod.Spec.Containers {
			if own := pod.Spec.Containers[i].Resources.Requests.Memory().Value(); least < 0 || own < least {
				least = own
			}
		}
		request = max(request, least)
	}
	if pod.Spec.Resources != nil {
		containers, _ := aggregate(&corev1.PodSpec{InitContainers: pod.Spec.InitContainers, Containers: pod.Spec.Containers}, corev1.ResourceMemory, requestsOf)
		rest := max(pod.Spec.Resources.Requests.Memory().Value()-containers.Value(), 0)
		request += rest / int64(len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	}
	score := int64(bestEffort)
	if memory > 0 {
		score -= bestEffort * request / memory
	}
	return min(max(score, bestEffort+guaranteed), bestEffort-1)
}
