// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// The units of the kernel.
const (
	sharesPerCPU = 1024
	minShares    = 2
	cpuPeriod    = 100_000 // microseconds
	minQuota     = 1_000
)

// resources returns the cgroup limits of a container. pod is nil for those of a pod as a
// whole.
func resources(pod *corev1.Pod, c *corev1.Container, memory int64) *runtimeapi.LinuxContainerResources {
	limits := func(name corev1.ResourceName) (q resource.Quantity, ok bool) {
		if q, ok = c.Resources.Limits[name]; !ok && pod != nil && pod.Spec.Resources != nil {
			q, ok = pod.Spec.Resources.Limits[name]
		}
		return q, ok
	}
	request, ok := c.Resources.Requests[corev1.ResourceCPU]
	limit, limited := limits(corev1.ResourceCPU)
	if !ok && limited {
		request = limit
	}
	out := &runtimeapi.LinuxContainerResources{CpuPeriod: cpuPeriod, CpuShares: max(request.MilliValue()*sharesPerCPU/1000, minShares)}
	if limited && limit.Sign() > 0 {
		out.CpuQuota = max(limit.MilliValue()*cpuPeriod/1000, minQuota)
	}
	if limit, ok := limits(corev1.ResourceMemory); ok {
		out.MemoryLimitInBytes = limit.Value()
	}
	if pod != nil {
		out.OomScoreAdj = oomScore(pod, c, memory)
	}
	return out
}

// oomScore returns the value by which the kernel chooses a process to kill when the
// machine has no memory left, as the kubelet computes it: guaranteed pods last, then
// the containers that request the most.
func oomScore(pod *corev1.Pod, c *corev1.Container, memory int64) int64 {
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
	request := c.Resources.Requests[corev1.ResourceMemory]
	score := int64(bestEffort)
	if memory > 0 {
		score -= bestEffort * request.Value() / memory
	}
	return min(max(score, bestEffort+guaranteed), bestEffort-1)
}
