// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// Usage is the usage of one running container.
type Usage struct {
	// At is the time of the values in nanoseconds since 1970.
	At int64
	// CPU is the CPU time in nanoseconds.
	CPU uint64
	// Memory is the working set in bytes.
	Memory uint64
	// Disk is the size of the writable layer in bytes.
	Disk uint64
}

// Usage returns the usage of the running containers by pod and name.
func (r *Runtime) Usage(ctx context.Context) (map[types.UID]map[string]Usage, error) {
	answer, err := r.client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: r.selector("")}})
	if err != nil {
		return nil, err
	}
	all := map[types.UID]map[string]Usage{}
	for _, s := range answer.Stats {
		id := idOf(s.GetAttributes())
		if all[id.Pod] == nil {
			all[id.Pod] = map[string]Usage{}
		}
		if s.Cpu == nil && s.Memory == nil {
			continue // it does not run
		}
		all[id.Pod][id.Name] = Usage{
			At: s.GetCpu().GetTimestamp(), CPU: s.GetCpu().GetUsageCoreNanoSeconds().GetValue(),
			Memory: s.GetMemory().GetWorkingSetBytes().GetValue(), Disk: s.GetWritableLayer().GetUsedBytes().GetValue(),
		}
	}
	return all, nil
}

// DiskUsage implements podruntime.DiskMeter with the writable layer of the newest run
// and all logs of each container.
func (r *Runtime) DiskUsage(ctx context.Context, pod types.UID) (map[string]int64, error) {
	answer, err := r.client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: r.selector(pod)}})
	if err != nil {
		return nil, err
	}
	usage, newest := map[string]int64{}, map[string]int{}
	for _, s := range answer.Stats {
		id := idOf(s.GetAttributes())
		if _, ok := usage[id.Name]; !ok || id.Attempt > newest[id.Name] {
			usage[id.Name], newest[id.Name] = int64(s.GetWritableLayer().GetUsedBytes().GetValue()), id.Attempt
		}
	}
	for name := range usage {
		logs, err := podruntime.DirUsage(filepath.Join(r.logDir(pod), name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		usage[name] += logs
	}
	return usage, nil
}
