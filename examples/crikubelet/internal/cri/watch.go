// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Watch implements podruntime.Watcher: with the events of the runtime, or if it has
// none by two lists, of containers and sandboxes, every Config.Poll.
func (r *Runtime) Watch(ctx context.Context, changed func(types.UID)) error {
	stream, err := r.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	events := 0
	for ; err == nil; events++ {
		var event *runtimeapi.ContainerEventResponse
		if event, err = stream.Recv(); err == nil && event.GetPodSandboxStatus().GetLabels()[labelNode] == r.cfg.Node {
			changed(types.UID(event.PodSandboxStatus.Labels[labelUID]))
		}
	}
	// CRI-O ends the stream at once if its events are switched off.
	if status.Code(err) == codes.Unimplemented || events == 1 && errors.Is(err, io.EOF) {
		return r.poll(ctx, changed)
	}
	return err
}

// A snapshot is the states of all sandboxes and containers, by ID, with their pods.
type snapshot map[string]snapshotEntry

type snapshotEntry struct {
	pod   types.UID
	state int32
}

// poll compares snapshots.
func (r *Runtime) poll(ctx context.Context, changed func(types.UID)) error {
	var last snapshot
	for {
		next, err := r.snapshot(ctx)
		if err != nil {
			return err
		}
		for id, entry := range next {
			if last[id] != entry {
				changed(entry.pod)
			}
		}
		for id, entry := range last {
			if _, ok := next[id]; !ok {
				changed(entry.pod)
			}
		}
		last = next
		if !sleep(ctx, r.cfg.Poll) {
			return ctx.Err()
		}
	}
}

func (r *Runtime) snapshot(ctx context.Context) (snapshot, error) {
	containers, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: r.selector("")}})
	if err != nil {
		return nil, err
	}
	boxes, err := r.sandboxes(ctx, "")
	if err != nil {
		return nil, err
	}
	s := snapshot{}
	for _, c := range containers.Containers {
		s[c.Id] = snapshotEntry{types.UID(c.Labels[labelUID]), int32(c.State)}
	}
	for _, b := range boxes {
		s[b.Id] = snapshotEntry{types.UID(b.Labels[labelUID]), int32(b.State)}
	}
	return s, nil
}
