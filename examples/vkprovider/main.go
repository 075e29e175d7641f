// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Vkprovider runs a provider that was written for virtual-kubelet as a node of
// this library. Copy adapter.go, environment.go and server.go; the rest is a provider
// to try them with.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/internal/dirlock"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.NewFlags("vkprovider")
	nodeName := flags.NodeName()
	nodeCredentials := flags.Bool("node-credentials", false, "the client is system:node:NODE-NAME, as a kubelet is")
	nodeIP := flags.String("node-ip", "127.0.0.1", "`address` of the node")
	address := flags.String("address", "", "`address` to listen on, if connections to the node arrive elsewhere (default: that of the node)")
	port := flags.Int("port", 10250, "`port` on which the node answers kubectl logs, exec and top; 0: any that is free")
	clientCA := flags.String("client-ca-file", "", kube.ClientCAUsage)
	lockDir := flags.String("lock-dir", filepath.Join(os.TempDir(), fmt.Sprintf("kubewright-nodes-%d", os.Getuid())), "`folder` in which the processes of this machine lock their node names")
	process := flags.String("process", "", "`name` of this process in the node's Lease; the same after a restart elsewhere, and never that of two processes at a time (default: the host name)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	lock, err := lockNode(ctx, *lockDir, cfg.Host, *nodeName, stdout)
	if errors.Is(err, context.Canceled) {
		return nil // stopped while it waited
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	heartbeats, err := kube.Heartbeats(cfg)
	if err != nil {
		return err
	}
	client, err := kube.Unlimited(cfg)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(*address, *nodeIP), strconv.Itoa(*port)))
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()

	recorder, shutdown, err := kube.Events(ctx, cfg, "vkprovider")
	if err != nil {
		return err
	}
	defer shutdown()
	environment, err := NewEnvironment(client.CoreV1(), recorder)
	if err != nil {
		return err
	}
	provider := newCloud(*nodeName)
	var leases *lease.Controller
	// Of two processes with one node name one acts, and the other waits: on one machine
	// for lockNode, on two for the lease.
	holds := func(ctx context.Context, name string) error { return leases.Holds(ctx, name) }
	pods, err := podsync.New(podsync.Config{
		Client:   client.CoreV1(),
		NodeName: *nodeName,
		Gate:     holds,
		Provider: Adapt(provider, environment.Resolve),
		// Providers of this kind compute the phase themselves, and not all of
		// them report containers.
		Policy: podsync.Policy{TrustPhase: true},
		Hooks: podsync.Hooks{
			StageChanged: func(s podsync.StageChanged) {
				if !s.Forgotten {
					fmt.Fprintf(stdout, "pod %s/%s: %v\n", s.Ref.Namespace, s.Ref.Name, s.To)
				}
			},
		},
	})
	if err != nil {
		return err
	}
	node, err := nodestatus.New(nodestatus.Config{
		Client:   heartbeats.CoreV1(),
		NodeName: *nodeName,
		Gate:     holds,
		Template: template(),
		Setters: []nodestatus.Setter{
			nodestatus.Addresses(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: *nodeIP}),
			nodestatus.KubeletPort(int32(listener.Addr().(*net.TCPAddr).Port)),
		},
		NodeCredentials: *nodeCredentials,
		OnDeleted:       nodestatus.DeletedReregister,
		OnShutdown:      nodestatus.ShutdownNotReady,
		// A node whose pods are not looked after is not ready.
		HealthChecks: []nodestatus.HealthCheck{func(context.Context, string) error { return pods.Check(nil) }, pods.CheckProvider},
		Hooks: nodestatus.Hooks{
			Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) },
		},
	})
	if err != nil {
		return err
	}
	leases, err = lease.New(lease.Config{
		Client:           heartbeats.CoordinationV1(),
		ResetConnections: heartbeats.ResetConnections,
		NodeName:         *nodeName,
		Owner:            node.OwnerReference,
		Gate:             node.Live,
		Process:          *process,
		OnShutdown:       lease.ShutdownExpire, // a successor on another machine need not wait
		Hooks: lease.Hooks{
			PhaseChanged: func(p lease.PhaseChanged) { node.Trigger(p.NodeName) }, // the gates may be open
			Recovered:    func(r lease.Recovered) { node.Resync(r.NodeName) },
			Deleted:      func(d lease.Deleted) { node.Resync(d.NodeName) },
		},
	})
	if err != nil {
		return err
	}
	caFile, caBundle, note := kube.ClientCA(*clientCA, cfg, listener.Addr())
	if note != "" {
		klog.FromContext(ctx).Info(note)
	}
	server, err := nodeapi.New(nodeapi.Config{
		NodeName: *nodeName,
		Backend:  AdaptServer(provider),
		Client:   client,
		Listener: listener,
		Pods: func(yield func(*corev1.Pod) bool) {
			for _, info := range pods.All() {
				if info.Pod != nil && !yield(info.Pod) {
					return
				}
			}
		},
		Checks:       []nodeapi.Check{pods, node, leases},
		Certificate:  nodeapi.Certificate{Hosts: []string{*nodeIP}},
		ClientCAFile: caFile,
		ClientCA:     caBundle,
	})
	if err != nil {
		return err
	}
	group := kube.NewGroup(ctx)
	group.Last(leases.Run) // a node is alive while it ends
	group.Go(server.Run)
	group.Go(pods.Run)
	group.Go(node.Run)
	return group.Wait()
}

func template() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("20"),
		corev1.ResourceMemory: resource.MustParse("100Gi"),
		corev1.ResourcePods:   resource.MustParse("20"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "virtual-kubelet"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "cloud", Effect: corev1.TaintEffectNoSchedule}}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
}

// lockNode gets the node name for this process alone, among those of this machine. Two
// of them have the same host name, so the lease takes the second one for a restart of
// the first, and both would act.
func lockNode(ctx context.Context, dir, cluster, nodeName string, stdout io.Writer) (*os.File, error) {
	name := fmt.Sprintf("%s-%.4x", nodeName, sha256.Sum256([]byte(cluster)))
	lock, err := dirlock.ForName(ctx, dir, name, func() {
		fmt.Fprintf(stdout, "another process manages node %s: waiting for its end\n", nodeName)
	})
	if err != nil {
		return nil, fmt.Errorf("lock node %s: %w", nodeName, err)
	}
	return lock, nil
}
