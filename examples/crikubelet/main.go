// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Crikubelet is a kubelet for a container runtime with the Container Runtime
// Interface. It is packages nodestatus, lease and podsync with podruntime and a
// runtime that calls the CRI (internal/cri), and nodeapi for logs, exec and top.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/internal/dirlock"
)

func main() {
	// The memory of a node is for its pods, and this program has CPU time to spare.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	kube.Main(run)
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	cfg, err := o.Config()
	if err != nil {
		return err
	}
	// The kernel drops the lock with its process.
	lock, err := dirlock.ForName(ctx, o.root, "crikubelet", func() {
		fmt.Fprintf(stdout, "another process uses %s: waiting for its end\n", o.root)
	})
	if errors.Is(err, context.Canceled) {
		return nil // stopped while it waited
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	k := &kubelet{options: o, stdout: stdout}
	if err := k.connect(ctx, cfg); err != nil {
		return err
	}
	defer k.shutdown()
	if err := k.listen(); err != nil {
		return err
	}
	defer func() { _ = k.listener.Close() }()
	if err := k.assemble(ctx); err != nil {
		return err
	}
	defer k.runtime.Close()
	return k.run(ctx)
}
