// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/kubewright/kubewright/examples/internal/crilog"
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

// LogTail implements podruntime.LogTailer.
func (r *Runtime) LogTail(_ context.Context, id podruntime.ContainerID, limit int64) ([]byte, error) {
	data, err := crilog.Tail(r.logPath(id), limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has printed nothing
	}
	return data, err
}
