// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// StatsSummary implements nodeapi.StatsSource.
func (b *backend) StatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	usage, err := b.runtime.Usage(ctx)
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	node, err := nodeStats(now, b.nodeName)
	if err != nil {
		return nil, err
	}
	summary := &statsv1alpha1.Summary{Node: *node}
	for pod := range b.eachPod {
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

// nodeStats returns the usage of the machine.
func nodeStats(now metav1.Time, name string) (*statsv1alpha1.NodeStats, error) {
	busy, booted, err := cpuBusy("/proc/stat")
	if err != nil {
		return nil, err
	}
	total, err := meminfo("/proc/meminfo", "MemTotal:")
	if err != nil {
		return nil, err
	}
	available, err := meminfo("/proc/meminfo", "MemAvailable:")
	if err != nil {
		return nil, err
	}
	cpu, memory := uint64(busy), uint64(total-available)
	return &statsv1alpha1.NodeStats{
		NodeName: name, StartTime: metav1.NewTime(booted),
		CPU:    &statsv1alpha1.CPUStats{Time: now, UsageCoreNanoSeconds: &cpu},
		Memory: &statsv1alpha1.MemoryStats{Time: now, WorkingSetBytes: &memory},
	}, nil
}

// cpuBusy returns the CPU time that the machine has spent on something, and when
// it was booted, by a file like /proc/stat.
func cpuBusy(path string) (busy time.Duration, booted time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, booted, err
	}
	defer func() { _ = f.Close() }()
	const tick = 10 * time.Millisecond
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) > 8 && fields[0] == "cpu": // user nice system idle iowait irq softirq steal
			for _, i := range []int{1, 2, 3, 6, 7, 8} {
				n, _ := strconv.ParseInt(fields[i], 10, 64)
				busy += time.Duration(n) * tick
			}
		case len(fields) == 2 && fields[0] == "btime":
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			booted = time.Unix(n, 0)
		}
	}
	if busy == 0 {
		return 0, booted, fmt.Errorf("%s does not say how busy the CPUs are", path)
	}
	return busy, booted, nil
}
