// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kubewright/kubewright/examples/internal/machine"
)

// StatsSummary implements nodeapi.StatsSource.
func (b *backend) StatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	usage, err := b.runtime.Usage(ctx)
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	node, err := machine.ReadUsage()
	if err != nil {
		return nil, err
	}
	busy := uint64(node.CPU)
	summary := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{
		NodeName: b.nodeName, StartTime: metav1.NewTime(node.Booted),
		CPU:    &statsv1alpha1.CPUStats{Time: now, UsageCoreNanoSeconds: &busy},
		Memory: &statsv1alpha1.MemoryStats{Time: now, WorkingSetBytes: &node.Memory},
	}}
	for pod := range b.pods.Pods {
		containers := usage[pod.UID]
		if len(containers) == 0 {
			continue
		}
		var cpu, memory uint64
		stats := statsv1alpha1.PodStats{PodRef: statsv1alpha1.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)}}
		if pod.Status.StartTime != nil {
			stats.StartTime = *pod.Status.StartTime
		}
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
			u, ok := containers[status.Name]
			if !ok || status.State.Running == nil {
				continue
			}
			at := metav1.NewTime(time.Unix(0, u.At))
			cpu, memory = cpu+u.CPU, memory+u.Memory
			stats.Containers = append(stats.Containers, statsv1alpha1.ContainerStats{
				Name: status.Name, StartTime: status.State.Running.StartedAt,
				CPU:    &statsv1alpha1.CPUStats{Time: at, UsageCoreNanoSeconds: &u.CPU},
				Memory: &statsv1alpha1.MemoryStats{Time: at, WorkingSetBytes: &u.Memory},
				Rootfs: &statsv1alpha1.FsStats{Time: at, UsedBytes: &u.Disk},
			})
		}
		stats.CPU = &statsv1alpha1.CPUStats{Time: now, UsageCoreNanoSeconds: &cpu}
		stats.Memory = &statsv1alpha1.MemoryStats{Time: now, WorkingSetBytes: &memory}
		summary.Pods = append(summary.Pods, stats)
	}
	return summary, nil
}
