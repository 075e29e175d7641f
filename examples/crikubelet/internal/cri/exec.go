// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// running returns the container of the runtime that has an ID and runs.
func (r *Runtime) running(ctx context.Context, id podruntime.ContainerID) (string, error) {
	found, err := r.find(ctx, id)
	if err != nil {
		return "", err
	}
	for _, c := range found {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return c.Id, nil
		}
	}
	return "", fmt.Errorf("%v does not run", id)
}

// execSlack is the time that the runtime has to end a command after its timeout.
const execSlack = 10 * time.Second

// maxOutput is the size of the largest answer of a command. Many probes at once must not fill the
// memory of the node with their output, of which a status has a kilobyte.
const maxOutput = 1 << 20

// Exec implements podruntime.Execer. A runtime leaves a command running if the call is
// cancelled, so the timeout is the runtime's, in whole seconds, and Exec waits for it. It does not
// wait if ctx is cancelled: then the container is about to end, and the command with it, or this
// process is, and a hook may take as long as it likes.
func (r *Runtime) Exec(ctx context.Context, id podruntime.ContainerID, command []string) (podruntime.ExecResult, error) {
	container, err := r.running(ctx, id)
	if err != nil {
		return podruntime.ExecResult{}, err
	}
	var timeout time.Duration // 0: none
	call := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(deadline).Round(time.Second), time.Second)
		bounded, cancel := context.WithTimeout(call, timeout+execSlack)
		defer cancel()
		call = bounded
	}
	call, cancel := context.WithCancel(call)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})()
	answer, err := r.client.ExecSync(call, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: command, Timeout: int64(timeout / time.Second)}, grpc.MaxCallRecvMsgSize(maxOutput))
	if status.Code(err) == codes.DeadlineExceeded {
		return podruntime.ExecResult{}, fmt.Errorf("command timed out: %w", context.DeadlineExceeded)
	}
	if err != nil {
		return podruntime.ExecResult{}, err
	}
	return podruntime.ExecResult{ExitCode: answer.ExitCode, Output: append(answer.Stdout, answer.Stderr...)}, nil
}
