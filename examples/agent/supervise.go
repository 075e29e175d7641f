// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// restartDelay is the default of systemd's RestartSec=.
const restartDelay = 100 * time.Millisecond

// supervise does the work of systemd with Restart=on-failure. It knows nothing
// of configurations, and restarts the agent whenever it ends with a status
// other than 0 or by a signal.
func supervise(ctx context.Context, args []string, stdout io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	for start := 1; ; start++ {
		cmd := exec.CommandContext(ctx, exe, args...)
		cmd.Env = append(os.Environ(), childMark+"=1")
		cmd.Stdout, cmd.Stderr = stdout, stdout
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 30 * time.Second
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "supervisor: start %d, pid %d\n", start, cmd.Process.Pid)
		err := cmd.Wait()
		fmt.Fprintf(stdout, "supervisor: %s\n", cmd.ProcessState)
		var exit *exec.ExitError
		switch {
		case cmd.ProcessState.Success() || ctx.Err() != nil:
			return nil
		case !errors.As(err, &exit):
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartDelay):
		}
	}
}

// childMark is set in the environment of a supervised agent. The agent inherits
// its supervisor's flags but must not be a supervisor.
const childMark = "KUBEWRIGHT_AGENT_SUPERVISED"
