// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/cri"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/podsync/crilog"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// newServer returns the server of the node: logs, exec, attach, port-forward and
// stats of its pods.
func (k *kubelet) newServer(ctx context.Context, client kubernetes.Interface, cfg *rest.Config) (*nodeapi.Server, error) {
	server := nodeapi.Config{
		NodeName: k.nodeName,
		Client:   client,
		Listener: k.listener,
		Backend:  &backend{k},
		Pods:     k.pods.Pods,
		Checks:   []nodeapi.Check{k.node, k.leases, k.pods},
		Certificate: nodeapi.Certificate{
			CertFile: k.certFile, KeyFile: k.keyFile, Hosts: []string{k.nodeIP},
		},
	}
	var note string
	if server.ClientCAFile, server.ClientCA, note = kube.ClientCA(k.clientCAFile, cfg, k.listener.Addr()); note != "" {
		klog.FromContext(ctx).Info(note)
	}
	return nodeapi.New(server)
}

// listen opens the port of the server, which the Node reports.
func (k *kubelet) listen() (err error) {
	k.listener, err = net.Listen("tcp", net.JoinHostPort(k.nodeIP, strconv.Itoa(k.port)))
	if err == nil {
		k.port = k.listener.Addr().(*net.TCPAddr).Port
	}
	return err
}

// A backend implements the operations of nodeapi.
type backend struct{ *kubelet }

var (
	_ nodeapi.LogSource     = (*backend)(nil)
	_ nodeapi.Executor      = (*backend)(nil)
	_ nodeapi.Attacher      = (*backend)(nil)
	_ nodeapi.PortForwarder = (*backend)(nil)
	_ nodeapi.StatsSource   = (*backend)(nil)
)

// newestRun returns the newest run of a container, or the run before it.
func (b *backend) newestRun(ctx context.Context, c nodeapi.Container, previous bool) (podruntime.Container, error) {
	list, err := b.runtime.List(ctx, c.UID)
	if err != nil {
		return podruntime.Container{}, err
	}
	list = slices.DeleteFunc(list, func(run podruntime.Container) bool {
		return run.ID.Name != c.Name || run.State == podruntime.ContainerCreated
	})
	slices.SortFunc(list, func(a, b podruntime.Container) int { return b.ID.Attempt - a.ID.Attempt })
	if previous && len(list) < 2 {
		return podruntime.Container{}, apierrors.NewBadRequest("previous terminated container " + c.Name + " not found")
	}
	if len(list) == 0 {
		return podruntime.Container{}, apierrors.NewBadRequest("container " + c.Name + " is waiting to start")
	}
	if previous {
		return list[1], nil
	}
	return list[0], nil
}

// Logs implements nodeapi.LogSource.
func (b *backend) Logs(ctx context.Context, c nodeapi.Container, opts nodeapi.LogOptions) (io.ReadCloser, error) {
	run, err := b.newestRun(ctx, c, opts.Previous)
	if err != nil {
		return nil, err
	}
	log, err := b.runtime.Log(run.ID, crilog.OptionsOf(&opts, time.Now(), b.runtime.Ended(ctx, run.ID)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, apierrors.NewBadRequest("container " + c.Name + " has no log")
	}
	return log, err
}

// streamsOf returns the streams of a request for the runtime.
func streamsOf(ctx context.Context, s nodeapi.Streams) cri.Streams {
	return cri.Streams{Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, TTY: s.TTY, Resize: func() *remotecommand.TerminalSize {
		select {
		case size, ok := <-s.Resize:
			if ok {
				return &remotecommand.TerminalSize{Width: size.Width, Height: size.Height}
			}
		case <-ctx.Done():
		}
		return nil
	}}
}

// Exec implements nodeapi.Executor.
func (b *backend) Exec(ctx context.Context, c nodeapi.Container, command []string, s nodeapi.Streams) error {
	run, err := b.newestRun(ctx, c, false)
	if err != nil {
		return err
	}
	return b.runtime.ExecStreams(ctx, run.ID, command, streamsOf(ctx, s))
}

// Attach implements nodeapi.Attacher.
func (b *backend) Attach(ctx context.Context, c nodeapi.Container, s nodeapi.Streams) error {
	run, err := b.newestRun(ctx, c, false)
	if err != nil {
		return err
	}
	return b.runtime.Attach(ctx, run.ID, streamsOf(ctx, s))
}

// PortForward implements nodeapi.PortForwarder.
func (b *backend) PortForward(ctx context.Context, pod nodeapi.Pod, port uint16, stream io.ReadWriteCloser) error {
	return b.runtime.PortForward(ctx, pod.UID, port, stream)
}
