// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

// ResizePod implements podruntime.PodResizer: it makes the cgroup of a pod, unless it
// exists, and sets its limits.
func (r *Runtime) ResizePod(_ context.Context, pod *corev1.Pod, grow bool) error {
	if !r.hasPodCgroups() {
		return nil
	}
	whole := resources(&corev1.Pod{}, &corev1.Container{Resources: podruntime.PodResources(pod)}, 0)
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
