// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package composetest shows how to test a composition of controllers in virtual
// time, without a network. This file has the composition: a node as in a real
// program. The tests run it against package apitest.
package composetest

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

// Run manages a node until ctx is done. It takes a client configuration instead
// of a client, so that a test can replace only the network.
func Run(ctx context.Context, cfg *rest.Config, nodeName string, provider podsync.Provider) error {
	heart, err := heartbeats(cfg)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, "composetest")

	var leases *lease.Controller
	// Of two processes with the same node name, one acts and the other waits.
	holds := func(ctx context.Context, name string) error { return leases.Holds(ctx, name) }
	pods, err1 := podsync.New(podsync.Config{
		Client:        client.CoreV1(),
		NodeName:      nodeName,
		Provider:      provider,
		Gate:          holds,
		EventRecorder: recorder,
	})
	node, err2 := nodestatus.New(nodestatus.Config{
		Client:   heart.CoreV1(),
		NodeName: nodeName,
		Gate:     holds,
		Setters: []nodestatus.Setter{
			nodestatus.StandardLabels(),
			nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: "v1.37.0"}),
			nodestatus.Addresses(corev1.NodeAddress{Type: corev1.NodeHostName, Address: nodeName}),
			nodestatus.Capacity(corev1.ResourceList{
				corev1.ResourceCPU:  resource.MustParse("8"),
				corev1.ResourcePods: resource.MustParse("110"),
			}, nil),
		},
		// The node is Ready while the loop of podsync moves, the pods are known and the
		// provider answers.
		HealthChecks: []nodestatus.HealthCheck{
			func(context.Context, string) error { return pods.Check(nil) },
			pods.CheckProvider,
		},
		OnDeleted:     nodestatus.DeletedReregister,
		OnShutdown:    nodestatus.ShutdownNotReady,
		EventRecorder: recorder,
		Hooks: nodestatus.Hooks{
			Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) },
		},
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	leases, err = lease.New(lease.Config{
		Client:           heart.CoordinationV1(),
		ResetConnections: heart.ResetConnections,
		NodeName:         nodeName,
		Owner:            node.OwnerReference,
		Gate:             node.Live,
		Hooks: lease.Hooks{
			PhaseChanged: func(p lease.PhaseChanged) { node.Trigger(p.NodeName) }, // the gates may be open
			Recovered:    func(r lease.Recovered) { node.Resync(r.NodeName) },
			Deleted:      func(d lease.Deleted) { node.Resync(d.NodeName) },
		},
	})
	if err != nil {
		return err
	}
	return runTogether(ctx, leases.Run, node.Run, pods.Run)
}
