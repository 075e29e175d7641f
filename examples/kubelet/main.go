// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Kubelet is a small kubelet for Linux: pods that are bound to its Node run as
// processes of this machine. It is packages nodestatus, lease and podsync, and
// a provider that starts processes (internal/process).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/kubelet/internal/process"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
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
	cfg, err := o.Config()
	if err != nil {
		return err
	}
	cfg.QPS = -1 // what is slow enough for the API server, it says itself
	heartbeats, err := kube.Heartbeats(cfg)
	if err != nil {
		return err
	}
	recorder, shutdown, err := kube.Events(ctx, cfg, "kubewright-kubelet")
	if err != nil {
		return err
	}
	defer shutdown()
	machine, err := readMachine()
	if err != nil {
		return err
	}
	pods, provider, err := newPods(ctx, cfg, o, machine, podsync.Config{EventRecorder: recorder})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }() // the pods run on

	// Each controller knows something that the other has to act on. Their
	// hooks are called from Run, when both exist.
	var leases *lease.Controller
	node, err := nodestatus.New(nodestatus.Config{
		Client:          heartbeats.CoreV1(),
		NodeName:        o.nodeName,
		Template:        template(o),
		Setters:         machine.setters(o),
		HealthChecks:    []nodestatus.HealthCheck{alive(pods)},
		NodeCredentials: o.nodeCredentials,
		// The Node comes back, its pods don't: the garbage collector of pods
		// deletes them, and podsync stops what runs.
		OnDeleted:     nodestatus.DeletedReregister,
		OnShutdown:    nodestatus.ShutdownNotReady,
		EventRecorder: recorder,
		Hooks: nodestatus.Hooks{
			Registered: func(r nodestatus.Registered) {
				fmt.Fprintf(stdout, "node %s: registered, UID %s\n", r.NodeName, r.Node.UID)
				leases.Trigger(r.NodeName)
			},
			ConditionChanged: func(c nodestatus.ConditionChanged) {
				fmt.Fprintf(stdout, "node %s: %s=%s, %s: %s\n", c.NodeName, c.Condition.Type, c.Condition.Status, c.Condition.Reason, c.Condition.Message)
			},
		},
	})
	if err != nil {
		return err
	}
	leases, err = lease.New(lease.Config{
		Client:   heartbeats.CoordinationV1(),
		NodeName: o.nodeName,
		Owner:    node.OwnerReference,
		Gate:     node.Live,
		Hooks: lease.Hooks{
			Recovered: func(r lease.Recovered) { node.Resync(r.NodeName) },
			Deleted:   func(d lease.Deleted) { node.Resync(d.NodeName) },
		},
	})
	if err != nil {
		return err
	}
	group := kube.NewGroup(ctx)
	group.Go(node.Run)
	group.Go(leases.Run)
	group.Go(pods.Run)
	return group.Wait()
}

// newPods returns the controller of pods and its provider, which has found what
// runs.
func newPods(ctx context.Context, cfg *rest.Config, o *options, m *machine, pods podsync.Config) (*podsync.Controller, *process.Provider, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	core := client.CoreV1()
	env, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core, Services: core, ServiceAccounts: core, Allocatable: m.allocatable})
	if err != nil {
		return nil, nil, err
	}
	provider, err := process.Open(ctx, process.Config{
		Root: o.root, Environment: env, HostIP: o.nodeIP, Allocatable: m.allocatable(), Backoff: o.backoff,
	})
	if err != nil {
		return nil, nil, err
	}
	pods.Client, pods.Provider, pods.NodeName = core, provider, o.nodeName
	controller, err := podsync.New(pods)
	if err != nil {
		return nil, nil, errors.Join(err, provider.Close())
	}
	return controller, provider, nil
}

// alive is the health check of the node: the loop that runs pods makes progress.
func alive(pods *podsync.Controller) nodestatus.HealthCheck {
	return func(context.Context, string) error {
		if err := pods.Check(&http.Request{}); err != nil {
			return &nodestatus.NotReadyError{Reason: "PodsStuck", Message: err.Error()}
		}
		return nil
	}
}
