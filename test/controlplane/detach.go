// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/kubewright/kubewright/test/controlplane/internal/cluster"
	"github.com/kubewright/kubewright/test/controlplane/internal/control"
)

// upDetached starts a launcher in its own session, waits until its cluster is ready, and leaves it running.
func upDetached(ctx context.Context, f upFlags, args []string) error {
	// Build in this process, so that the progress is visible and Ctrl-C stops the build.
	if _, err := ensure(ctx, f.Version); err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "detach") })
	cmd := exec.Command(executable, append([]string{"up", "--detached", "--name=" + f.name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	var resp control.Response
	var s cluster.Status
	err = json.NewDecoder(stdout).Decode(&resp)
	switch {
	case err == nil && resp.Error != "":
		err = errors.New(resp.Error)
	case err == nil:
		err = json.Unmarshal(resp.Result, &s)
	}
	if err != nil {
		return errors.Join(err, cmd.Wait())
	}
	fmt.Printf("Kubernetes %s is ready at %s\nkubeconfig: %s\nlogs:       %s\n", s.Version, s.Server, s.Kubeconfig, s.Dir)
	return nil
}
