// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// A LogRotation bounds the logs of a container.
type LogRotation struct {
	// MaxSize is the size at which a log is put aside.
	MaxSize int64
	// MaxFiles is the number of files, the current one included.
	MaxFiles int
	// Interval is the time between two looks at the sizes.
	Interval time.Duration
}

// RunLogRotation rotates the logs of running containers until ctx is done.
func (r *Runtime) RunLogRotation(ctx context.Context, rotation LogRotation) error {
	for sleep(ctx, rotation.Interval) {
		if err := r.rotateLogs(ctx, rotation); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Logs are not rotated")
		}
	}
	return nil
}

func (r *Runtime) rotateLogs(ctx context.Context, rotation LogRotation) error {
	list, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: r.selector(""), State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list.Containers {
		id := idOf(c)
		errs = append(errs, r.rotateLog(ctx, c.Id, r.logPath(id), rotation))
	}
	return errors.Join(errs...)
}

// rotateLog puts a log aside if it is too big. The runtime writes to the old file until
// it has opened the new one, so no line is lost.
func (r *Runtime) rotateLog(ctx context.Context, container, log string, rotation LogRotation) error {
	info, err := os.Lstat(log)
	if errors.Is(err, fs.ErrNotExist) {
		// The process that put it aside was killed before the runtime opened the next one.
		_, err := r.client.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: container})
		return err
	}
	if err != nil || info.Size() < rotation.MaxSize {
		return err
	}
	aside := log + "." + time.Now().UTC().Format("20060102-150405.000000000")
	if err := os.Rename(log, aside); err != nil {
		return err
	}
	if _, err := r.client.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: container}); err != nil {
		return errors.Join(err, os.Rename(aside, log))
	}
	old, err := files(log+".", "") // by time
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range old[:max(0, len(old)-rotation.MaxFiles+1)] {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}
