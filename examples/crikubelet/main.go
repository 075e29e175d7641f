// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Crikubelet is a kubelet for a container runtime with the Container Runtime
// Interface. It is packages nodestatus, lease and podsync with podruntime and a
// runtime that calls the CRI (internal/cri), and nodeapi for logs, exec and top.
//
// This file is the composition: run is the order of things, and assemble makes the controllers.
// README.md has a table of the other files.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/examples/crikubelet/internal/cri"
	"github.com/kubewright/kubewright/examples/crikubelet/internal/dra"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/internal/machine"
	"github.com/kubewright/kubewright/internal/dirlock"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
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

// kubelet is the controllers, put together.
type kubelet struct {
	*options
	stdout io.Writer

	// From connect: leases and the node's status have a connection of their own.
	client     *kubernetes.Clientset
	heartbeats *kube.HeartbeatClient
	recorder   events.EventRecorder
	containers events.EventRecorder // as "kubelet", for programs that look for its events
	shutdown   func()
	listener   net.Listener
	api        *rest.Config

	// From assemble.
	capacity corev1.ResourceList
	runtime  *cri.Runtime
	provider *podruntime.Provider
	pods     *podsync.Controller
	node     *nodestatus.Controller
	leases   *lease.Controller
	server   *nodeapi.Server
	drivers  *dra.Drivers
}

// connect makes the clients.
func (k *kubelet) connect(ctx context.Context, cfg *rest.Config) (err error) {
	if k.client, err = kube.Unlimited(cfg); err != nil {
		return err
	}
	if k.heartbeats, err = kube.Heartbeats(cfg); err != nil {
		return err
	}
	k.api = cfg
	k.recorder, k.containers, k.shutdown, err = kube.KubeletEvents(ctx, cfg, "kubewright-crikubelet")
	return err
}

// assemble makes the controllers. It needs neither the API server nor the runtime.
func (k *kubelet) assemble(ctx context.Context) (err error) {
	if k.capacity, err = machine.Capacity(k.root, k.maxPods); err != nil {
		return err
	}
	k.drivers = &dra.Drivers{Registry: k.registry}
	k.runtime, err = cri.New(cri.Config{
		Endpoint: k.endpoint, Node: k.nodeName, LogDir: k.logDir, PullDir: filepath.Join(k.root, "pulls"), CgroupParent: k.cgroupParent,
		Claims:  &podruntime.Claims{Dir: filepath.Join(k.root, "claims"), Client: k.client.ResourceV1(), Drivers: k.drivers},
		Secrets: k.client.CoreV1(), RuntimeClasses: k.client.NodeV1(),
		Memory: k.capacity.Memory().Value(), Sysctls: k.sysctls, PullTimeout: k.pullTimeout,
	})
	if err != nil {
		return err
	}
	if err = k.assemblePods(); err == nil {
		err = k.assembleNode(ctx)
	}
	if err == nil {
		k.server, err = k.newServer(ctx, k.client, k.api)
	}
	if err != nil {
		k.runtime.Close()
	}
	return err
}

// assemblePods makes the controller of the pods and its provider.
func (k *kubelet) assemblePods() error {
	core := k.client.CoreV1()
	env, err := podenv.New(podenv.Config{
		ConfigMaps: core, Secrets: core, Services: core, ServiceAccounts: core, Nodes: core, Certificates: k.client.CertificatesV1(),
		Allocatable: k.allocatable, ReadFile: podruntime.ReadFile(k.root),
	})
	if err != nil {
		return err
	}
	host, err := machine.ReadResolvConf(k.resolvConf)
	if err != nil {
		return err
	}
	k.provider, err = podruntime.New(podruntime.Config{
		Runtime: k.runtime, Root: k.root, Environment: env, HostIPs: []string{k.nodeIP},
		Allocatable: k.allocatable, Pod: k.newest, EventRecorder: k.recorder, GRPC: cri.GRPCProber{},
		Node: func() *corev1.Node { return k.node.Node(k.nodeName) },
		ReadNode: func(ctx context.Context) (*corev1.Node, error) {
			return core.Nodes().Get(ctx, k.nodeName, metav1.GetOptions{})
		},
		Evict: func(ref podsync.Ref, eviction podsync.Eviction) error { return k.pods.Evict(ref, eviction) },
		DNS:   podruntime.ClusterDNS{Servers: k.clusterDNS, Domain: k.clusterDomain, Host: host},
	})
	if err != nil {
		return err
	}
	var checkpoint podsync.Checkpoint
	if k.offline {
		checkpoint = podsync.CheckpointDir(filepath.Join(k.root, "checkpoint"))
	}
	k.pods, err = podsync.New(podsync.Config{
		Checkpoint: checkpoint,
		Client:     core, Provider: k.provider, NodeName: k.nodeName, Gate: k.holds,
		EventRecorder: k.recorder, ContainerEvents: k.containers,
		HostIPs: func(string) []string { return []string{k.nodeIP} },
		// A busy runtime takes seconds for a step, such as from the sandbox to the container.
		// Until a pod runs, its status says only that it is being made, so it waits for the
		// end of that. Problems do not wait.
		PendingAfter: 10 * time.Second,
	})
	return err
}

// allocatable returns the resources for pods. Nothing is reserved for this process.
func (k *kubelet) allocatable() corev1.ResourceList { return k.capacity }

// newest returns the newest version of a pod, for volumes with its labels.
func (k *kubelet) newest(ref podsync.Ref) *corev1.Pod {
	info, _ := k.pods.Get(ref)
	return info.Pod
}

// assembleNode makes the controllers of the Node and of its lease.
func (k *kubelet) assembleNode(ctx context.Context) (err error) {
	k.leases, err = lease.New(lease.Config{
		Client:           k.heartbeats.CoordinationV1(),
		ResetConnections: k.heartbeats.ResetConnections,
		NodeName:         k.nodeName,
	})
	if err != nil {
		return err
	}
	k.node, err = nodestatus.New(nodestatus.Config{
		Client:          k.heartbeats.CoreV1(),
		NodeName:        k.nodeName,
		Lease:           k.leases,
		Template:        &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.nodeName}},
		Setters:         k.setters(ctx),
		HealthChecks:    []nodestatus.HealthCheck{k.runtimeAlive, k.podsAlive},
		NodeCredentials: k.nodeCredentials,
		// The Node comes back, its pods don't: the garbage collector of pods
		// deletes them, and podsync stops what runs.
		OnDeleted:     nodestatus.DeletedReregister,
		OnShutdown:    nodestatus.ShutdownNotReady,
		EventRecorder: k.recorder,
		Hooks: nodestatus.Hooks{
			Registered: func(r nodestatus.Registered) {
				fmt.Fprintf(k.stdout, "node %s: registered, UID %s\n", r.NodeName, r.Node.UID)
			},
			ConditionChanged: func(c nodestatus.ConditionChanged) {
				fmt.Fprintf(k.stdout, "node %s: %s=%s, %s: %s\n", c.NodeName, c.Condition.Type, c.Condition.Status, c.Condition.Reason, c.Condition.Message)
			},
		},
	})
	return err
}

// holds is the gate of the pods: of two kubelets with one node name one acts, and the other
// waits. With --offline the lock of the root directory is the gate.
func (k *kubelet) holds(ctx context.Context, nodeName string) error {
	if k.offline {
		return nil
	}
	return k.leases.Holds(ctx, nodeName)
}

// run runs the controllers until one of them ends or ctx is done. The pods run on.
func (k *kubelet) run(ctx context.Context) error {
	images := part(func(ctx context.Context) error { return k.runtime.RunImageGC(ctx, k.imageGC) })
	logs := part(func(ctx context.Context) error { return k.runtime.RunLogRotation(ctx, k.rotation) })
	return kubewright.Run(ctx, k.leases, k.node, images, logs, k.drivers, k.provider, k.pods, k.server)
}

// A part is a function that runs like a controller.
type part func(ctx context.Context) error

// Run calls p.
func (p part) Run(ctx context.Context) error { return p(ctx) }

// runtimeAlive is the health check of the Node: the runtime and its network are ready.
func (k *kubelet) runtimeAlive(ctx context.Context, _ string) error {
	if err := k.runtime.Ready(ctx); err != nil {
		return &nodestatus.NotReadyError{Reason: "KubeletNotReady", Message: "container runtime: " + err.Error()}
	}
	return nil
}

// podsAlive is the health check of the Node: the loop of podsync moves, and its
// provider answers.
func (k *kubelet) podsAlive(ctx context.Context, nodeName string) error {
	if err := k.pods.CheckProvider(ctx, nodeName); err != nil {
		return &nodestatus.NotReadyError{Reason: "PodsStuck", Message: err.Error()}
	}
	return nil
}
