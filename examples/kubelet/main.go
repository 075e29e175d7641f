// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Kubelet is a small kubelet for Linux: pods that are bound to its Node run as
// processes of this machine. It is packages nodestatus, lease and podsync with a
// provider that starts processes (internal/process), configcheckpoint for its
// own settings, and resourceslice for the machine's CPUs if asked to.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/kubelet/internal/process"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/internal/dirlock"
)

func main() {
	shim.Main() // if this process is to watch a container
	kube.Main(run)
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	root, err := process.Lock(o.root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()

	rotate, stop := context.WithCancel(context.WithoutCancel(ctx)) // while the node drains too
	defer stop()
	cfg, err := o.clientConfig(ctx, rotate, stdout)
	if errors.Is(err, context.Canceled) {
		return nil // stopped while it waited for a certificate
	}
	if err != nil {
		return err
	}
	lock, err := o.lockNode(ctx, cfg.Host, stdout)
	if errors.Is(err, context.Canceled) {
		return nil // stopped while it waited
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	k := &kubelet{options: o, root: root, stdout: stdout, asked: ctx.Err}
	if err := k.connect(context.WithoutCancel(ctx), cfg); err != nil { // k.shutdown ends it
		return err
	}
	defer k.shutdown()
	if err := k.listen(); err != nil {
		return err
	}
	defer func() { _ = k.listener.Close() }()
	checkpoint, err := newCheckpoint(o, k.client.CoreV1(), stdout, k.health, k.changed)
	if err != nil {
		return err
	}
	// Which settings run is decided here, without the API server.
	active, err := checkpoint.Boot(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "settings: booted with %s, %s\n", active.Role, active.Ref)

	failure := k.assemble(ctx, active.Config, configkube.NodeCondition(checkpoint.Status, configCondition))
	if err = failure; err == nil {
		err = k.run(ctx, checkpoint)
		if !errors.Is(err, configcheckpoint.ErrRestart) { // else it is the checkpoint that has ended
			failure = err
		}
	}
	// A failure counts against settings on trial; a cancelled start does not.
	err = errors.Join(err, checkpoint.Close(failure))
	if errors.Is(err, configcheckpoint.ErrRestart) {
		return restart{err}
	}
	return err
}

// lockNode gets the node name for this process alone, among those of this machine. The
// lease lets only one of two processes act, but the processes of pods outlive a kubelet: the
// second one must not take over those of the first while that lives.
func (o *options) lockNode(ctx context.Context, cluster string, stdout io.Writer) (*os.File, error) {
	name := fmt.Sprintf("%s-%.4x", o.nodeName, sha256.Sum256([]byte(cluster)))
	lock, err := dirlock.ForName(ctx, o.lockDir, name, func() {
		fmt.Fprintf(stdout, "another process manages node %s: waiting for its end\n", o.nodeName)
	})
	if err != nil {
		return nil, fmt.Errorf("lock node %s: %w", o.nodeName, err)
	}
	return lock, nil
}
