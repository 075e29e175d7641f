// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package composetest shows how to test a composition of one's own, hermetically
// and in virtual time. The composition is in this file: a node, as your program
// has one. The tests are what there is to copy, with the API server in memory
// that they use.
package composetest

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

// Run serves a node until ctx is done. It takes the configuration of the client
// and not a client: then a test exchanges the network, and all that the program
// does to its clients is tested along.
func Run(ctx context.Context, cfg *rest.Config, nodeName string, provider podsync.Provider) error {
	heartbeats, err := kube.Heartbeats(cfg)
	if err != nil {
		return err
	}
	client, err := kube.Unlimited(cfg)
	if err != nil {
		return err
	}
	recorder, shutdown, err := kube.Events(ctx, cfg, "composetest")
	if err != nil {
		return err
	}
	defer shutdown()

	var leases *lease.Controller
	node, err1 := nodestatus.New(nodestatus.Config{
		Client:   heartbeats.CoreV1(),
		NodeName: nodeName,
		Setters: []nodestatus.Setter{nodestatus.StandardLabels(), nodestatus.Capacity(corev1.ResourceList{
			corev1.ResourceCPU:  resource.MustParse("8"),
			corev1.ResourcePods: resource.MustParse("110"),
		}, nil)},
		OnDeleted:     nodestatus.DeletedReregister,
		OnShutdown:    nodestatus.ShutdownNotReady,
		EventRecorder: recorder,
		Hooks: nodestatus.Hooks{
			Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) },
		},
	})
	pods, err2 := podsync.New(podsync.Config{
		Client:        client.CoreV1(),
		NodeName:      nodeName,
		Provider:      provider,
		EventRecorder: recorder,
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	leases, err = lease.New(lease.Config{
		Client:           heartbeats.CoordinationV1(),
		ResetConnections: heartbeats.ResetConnections,
		NodeName:         nodeName,
		Owner:            node.OwnerReference,
		Gate:             node.Live,
		Hooks: lease.Hooks{
			Recovered: func(r lease.Recovered) { node.Resync(r.NodeName) },
			Deleted:   func(d lease.Deleted) { node.Resync(d.NodeName) },
		},
	})
	if err != nil {
		return err
	}
	group := kube.NewGroup(ctx)
	group.Last(leases.Run) // a node is alive while it stops
	group.Go(node.Run)
	group.Go(pods.Run)
	return group.Wait()
}
