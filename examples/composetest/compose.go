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

	"github.com/kubewright/kubewright"
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

	leases, err1 := lease.New(lease.Config{
		Client:           heart.CoordinationV1(),
		ResetConnections: heart.ResetConnections,
		NodeName:         nodeName,
	})
	pods, err2 := podsync.New(podsync.Config{
		Client:        client.CoreV1(),
		NodeName:      nodeName,
		Provider:      provider,
		Gate:          leases.Holds, // of two processes with the same node name, one acts and the other waits
		EventRecorder: recorder,
	})
	node, err3 := nodestatus.New(nodestatus.Config{
		Client:        heart.CoreV1(),
		NodeName:      nodeName,
		Lease:         leases,
		Setters:       nodestatus.Standard(nodestatus.ContainerRuntime("pretend://1"), nodestatus.Capacity(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}, nil)),
		HealthChecks:  []nodestatus.HealthCheck{pods.CheckProvider}, // the pods are known, and the provider answers
		OnDeleted:     nodestatus.DeletedReregister,
		OnShutdown:    nodestatus.ShutdownNotReady,
		EventRecorder: recorder,
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	return kubewright.Run(ctx, leases, node, pods) // stops the last one first
}
