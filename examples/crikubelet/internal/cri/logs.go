// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/crilog"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// logPath returns the path of a container's log.
func (r *Runtime) logPath(id podruntime.ContainerID) string {
	return filepath.Join(r.logDir(id.Pod), logName(id))
}

// Log opens the log of a container.
func (r *Runtime) Log(id podruntime.ContainerID, opts crilog.Options) (*crilog.Reader, error) {
	return crilog.Open(r.logPath(id), opts)
}

// followInterval is the time between two lists of containers for the followers of logs.
const followInterval = time.Second

// A runningList is the containers that run. All followers of logs share it: clients may open
// many, and each looks for the end of its container ten times a second.
type runningList struct {
	mu  sync.Mutex
	at  time.Time                       // when it was asked for
	ids map[podruntime.ContainerID]bool // nil if the runtime has not answered
}

// Ended returns a function for crilog.Options, which reports whether a container that runs now has
// ended. The function notices the end up to a second late, and reports false while the runtime does
// not answer.
func (r *Runtime) Ended(ctx context.Context, id podruntime.ContainerID) func() bool {
	since, l := time.Now(), &r.follow
	return func() bool {
		if !l.mu.TryLock() {
			return false // another follower waits for the list
		}
		defer l.mu.Unlock()
		if l.at.Before(since) || time.Since(l.at) >= followInterval {
			l.at, l.ids = time.Now(), r.listRunning(ctx)
		}
		return l.ids != nil && !l.ids[id]
	}
}

// listRunning returns the containers that run, or nil.
func (r *Runtime) listRunning(ctx context.Context) map[podruntime.ContainerID]bool {
	answer, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: r.selector("")}})
	if err != nil {
		return nil
	}
	ids := map[podruntime.ContainerID]bool{}
	for _, c := range answer.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING || c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
			ids[idOf(c)] = true
		}
	}
	return ids
}

// LogTail implements podruntime.LogTailer.
func (r *Runtime) LogTail(_ context.Context, id podruntime.ContainerID, limit int64) ([]byte, error) {
	data, err := crilog.Tail(r.logPath(id), limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has printed nothing
	}
	return data, err
}
