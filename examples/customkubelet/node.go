// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

// options are what differs between two nodes.
type options struct {
	name            string
	ip              string
	listener        net.Listener // of the node's API; nil: none, as in tests with virtual time
	clientCAFile    string
	nodeCredentials bool
	process         string // distinguishes two processes of one node; empty: the host name
}

// A node holds the controllers of one node.
type node struct {
	options
	leases      *lease.Controller
	status      *nodestatus.Controller
	pods        *podsync.Controller
	server      *nodeapi.Server // nil without a listener
	broadcaster events.EventBroadcaster
	probes      probes
}

// newNode makes the controllers.
func newNode(cfg *rest.Config, o options, p *provider) (*node, error) {
	heart, err := heartbeats(cfg)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	n := &node{options: o, broadcaster: events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})}
	recorder := n.broadcaster.NewRecorder(scheme.Scheme, "customkubelet")

	// Each package's hooks become metrics, and then call the hooks of this program.
	registry := prometheus.NewRegistry()
	leaseHooks, err1 := metrics.Lease(registry, lease.Hooks{})
	statusHooks, err2 := metrics.NodeStatus(registry, nodestatus.Hooks{})
	podHooks, err3 := metrics.PodSync(registry, podsync.Hooks{})
	serverHooks, err4 := metrics.NodeAPI(registry, nodeapi.Hooks{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}

	n.leases, err1 = lease.New(lease.Config{
		Client: heart.CoordinationV1(), ResetConnections: heart.ResetConnections, NodeName: o.name, Process: o.process, Hooks: leaseHooks,
	})
	n.pods, err2 = podsync.New(podsync.Config{
		Client: client.CoreV1(), NodeName: o.name, Provider: p,
		Gate:          n.leases.Holds, // of two processes with one node name, on different hosts, one acts and the other waits
		HostIPs:       func(string) []string { return []string{o.ip} },
		EventRecorder: recorder, Hooks: podHooks,
	})
	setters := nodestatus.Standard(
		nodestatus.ContainerRuntime("pretend://1"),
		nodestatus.Addresses(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: o.ip}),
		nodestatus.Capacity(corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("16Gi"),
		}, nil),
	)
	if o.listener != nil {
		setters = append(setters, nodestatus.KubeletPort(int32(o.listener.Addr().(*net.TCPAddr).Port)), nodestatus.DeclaredFeatures(nodeapi.FeatureWebSockets))
	}
	n.status, err3 = nodestatus.New(nodestatus.Config{
		Client: heart.CoreV1(), NodeName: o.name, NodeCredentials: o.nodeCredentials, Lease: n.leases,
		Setters:       setters,
		HealthChecks:  []nodestatus.HealthCheck{n.pods.CheckProvider}, // the pods are known, and the provider answers
		OnDeleted:     nodestatus.DeletedReregister,
		OnShutdown:    nodestatus.ShutdownNotReady,
		EventRecorder: recorder, Hooks: statusHooks,
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	n.probes = probes{parts: []part{n.leases, n.status, n.pods}, metrics: metrics.Handler(registry)}
	if o.listener != nil {
		n.server, err = nodeapi.New(nodeapi.Config{
			NodeName: o.name, Backend: p, Client: client, Listener: o.listener,
			Pods:         n.pods.Pods,
			Checks:       []nodeapi.Check{n.status, n.pods},
			Metrics:      metrics.Handler(registry),
			Certificate:  nodeapi.Certificate{Hosts: []string{o.ip}},
			ClientCAFile: o.clientCAFile,
			Hooks:        serverHooks,
		})
	}
	if err != nil {
		return nil, err
	}
	return n, metrics.Health(registry, n.leases, n.status, n.pods)
}

// run runs the controllers until ctx is done or one of them ends.
func (n *node) run(ctx context.Context) error {
	defer n.broadcaster.Shutdown()
	if err := n.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	if n.server == nil {
		return kubewright.Run(ctx, n.leases, n.status, n.pods) // stops the last one first
	}
	return kubewright.Run(ctx, n.leases, n.status, n.pods, n.server)
}
