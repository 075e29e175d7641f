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
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/kubewright/kubewright/examples/internal/kube"
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
	lock, err := lockRoot(o.root)
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

// lockRoot makes the directory of the kubelet and waits for another process that has
// it. The kernel drops the lock with its process.
func lockRoot(root string) (*os.File, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
