// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/internal/cgroups"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// hasPodCgroups reports whether each pod has a cgroup. The parent must be a path: only
// systemd may divide a slice.
func (r *Runtime) hasPodCgroups() bool {
	return strings.HasPrefix(r.cfg.CgroupParent, "/") && !strings.HasSuffix(r.cfg.CgroupParent, ".slice")
}

// podCgroup returns the cgroup in which the runtime makes those of a pod's containers.
func (r *Runtime) podCgroup(pod types.UID) string {
	if !r.hasPodCgroups() {
		return r.cfg.CgroupParent
	}
	return path.Join(r.cfg.CgroupParent, "pod"+string(pod))
}

// limitPod makes the cgroup of a pod, unless it exists, and sets its limits. If grow is
// true, they do not shrink.
func (r *Runtime) limitPod(pod *corev1.Pod, grow bool) error {
	if !r.hasPodCgroups() {
		return nil
	}
	whole := podResources(pod)
	limits := cgroups.Limits{Shares: whole.CpuShares, Quota: whole.CpuQuota, Memory: whole.MemoryLimitInBytes}
	return r.cfg.Cgroups.Set(r.podCgroup(pod.UID), limits, grow)
}

// removePodCgroup removes the cgroup of a pod. It kills what the runtime has forgotten
// there.
func (r *Runtime) removePodCgroup(ctx context.Context, pod types.UID) error {
	if !r.hasPodCgroups() || pod == "" {
		return nil
	}
	return r.cfg.Cgroups.Remove(ctx, r.podCgroup(pod))
}

// podResources returns the resources of a pod as a whole. As with the kubelet, a pod
// has a limit if its spec has one for the pod, or if every container has one.
func podResources(pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	whole := corev1.Container{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: podruntime.RequestOf(pod, corev1.ResourceCPU)}, Limits: corev1.ResourceList{},
	}}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limited := func(r *corev1.ResourceRequirements) bool {
			q := r.Limits[name]
			return q.Sign() > 0
		}
		unlimited := func(c corev1.Container) bool { return !limited(&c.Resources) }
		if pod.Spec.Resources != nil && limited(pod.Spec.Resources) || !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), unlimited) {
			whole.Resources.Limits[name], _ = podruntime.LimitOf(pod, name)
		}
	}
	return resources(nil, &whole, 0)
}
