// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// The units of the kernel.
const (
	sharesPerCPU = 1024
	minShares    = 2
	cpuPeriod    = 100_000 // microseconds
	minQuota     = 1_000
)

// resources returns the cgroup limits of a container on a machine with memory.
func resources(pod *corev1.Pod, c *corev1.Container, memory int64) *runtimeapi.LinuxContainerResources {
	cpu, bytes := podruntime.ContainerLimit(pod, c, corev1.ResourceCPU), podruntime.ContainerLimit(pod, c, corev1.ResourceMemory)
	request, ok := c.Resources.Requests[corev1.ResourceCPU]
	if !ok {
		request = cpu
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuPeriod: cpuPeriod, CpuShares: max(request.MilliValue()*sharesPerCPU/1000, minShares),
		MemoryLimitInBytes: bytes.Value(), OomScoreAdj: podruntime.OOMScoreAdjust(pod, c, memory),
	}
	if cpu.Sign() > 0 {
		out.CpuQuota = max(cpu.MilliValue()*cpuPeriod/1000, minQuota)
	}
	return out
}
