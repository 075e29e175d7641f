// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Kubelet is a small kubelet for Linux: pods that are bound to its Node run as
// processes of this machine. It is packages nodestatus, lease and podsync with a
// provider that starts processes (internal/process), configcheckpoint for its
// own settings, and resourceslice for the machine's CPUs if asked to.
//
// This file is the composition: run is the order of things, and assemble makes the controllers.
// README.md has a table of the other files.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/internal/machine"
	"github.com/kubewright/kubewright/examples/kubelet/internal/process"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/internal/dirlock"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/resourceslice"
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

// kubelet is the controllers, put together.
type kubelet struct {
	*options
	root   *process.Root
	stdout io.Writer
	asked  func() error // not nil once the program has been asked to end, as by SIGTERM

	// From connect: leases and the node's status have a connection of their own.
	client     *kubernetes.Clientset
	heartbeats *kube.HeartbeatClient
	recorder   events.EventRecorder
	containers events.EventRecorder // as "kubelet", for programs that look for its events
	registry   *prometheus.Registry
	shutdown   func()
	listener   net.Listener
	api        *rest.Config

	// From assemble.
	node     *nodestatus.Controller
	leases   *lease.Controller
	pods     *podsync.Controller
	runtime  *process.Runtime
	provider *podruntime.Provider
	cpus     *resourceslice.Controller // nil unless published
	server   *nodeapi.Server
}

// connect makes the clients.
func (k *kubelet) connect(ctx context.Context, cfg *rest.Config) (err error) {
	if k.client, err = kube.Unlimited(cfg); err != nil {
		return err
	}
	if k.heartbeats, err = kube.Heartbeats(cfg); err != nil {
		return err
	}
	k.api, k.registry = cfg, prometheus.NewRegistry()
	k.recorder, k.containers, k.shutdown, err = kube.KubeletEvents(ctx, cfg, "kubewright-kubelet")
	return err
}

// assemble makes the controllers.
func (k *kubelet) assemble(ctx context.Context, s settings, condition nodestatus.Setter) error {
	capacity, err := machine.Capacity(k.root.Path(), s.MaxPods)
	if err != nil {
		return err
	}
	if err := k.assembleNode(s, capacity, condition); err != nil {
		return err
	}
	if k.publishCPUs {
		if k.cpus, err = newCPUs(k.client, k.nodeName, "/sys/devices/system/cpu"); err != nil {
			return err
		}
	}
	core := k.client.CoreV1()
	allocatable := func() corev1.ResourceList { return capacity } // nothing is reserved for this process
	env, err := podenv.New(podenv.Config{
		ConfigMaps: core, Secrets: core, Services: core, ServiceAccounts: core, Nodes: core, Certificates: k.client.CertificatesV1(),
		Allocatable: allocatable, ReadFile: podruntime.ReadFile(k.root.Path()),
	})
	if err != nil {
		return err
	}
	cfg := process.Config{Root: k.root}
	if k.publishCPUs {
		cfg.CPUs = claims{k.client.ResourceV1(), k.nodeName}.cpus
	}
	// Close ends it: ctx ends when the pods begin to, if the node drains.
	if k.runtime, err = process.New(context.WithoutCancel(ctx), cfg); err != nil {
		return err
	}
	if k.provider, k.pods, err = k.assemblePods(s, allocatable, env); err == nil {
		k.server, err = k.newServer(ctx, k.client, k.api)
	}
	if err == nil {
		err = metrics.Health(k.registry, k.leases, k.node, k.pods)
	}
	if err != nil {
		k.runtime.Close()
	}
	return err
}

// assemblePods makes the controller of the pods and its provider.
func (k *kubelet) assemblePods(s settings, allocatable func() corev1.ResourceList, env *podenv.Resolver) (*podruntime.Provider, *podsync.Controller, error) {
	provider, err := podruntime.New(podruntime.Config{
		Runtime: k.runtime, Root: k.root.Path(), Environment: env, HostIPs: []string{k.nodeIP},
		Allocatable: allocatable, Backoff: s.backoff(), Pod: k.newest, EventRecorder: k.recorder,
		Node: func() *corev1.Node { return k.node.Node(k.nodeName) },
		ReadNode: func(ctx context.Context) (*corev1.Node, error) {
			return k.client.CoreV1().Nodes().Get(ctx, k.nodeName, metav1.GetOptions{})
		},
		Evict: func(ref podsync.Ref, eviction podsync.Eviction) error { return k.pods.Evict(ref, eviction) },
	})
	if err != nil {
		return nil, nil, err
	}
	hooks, err := metrics.PodSync(k.registry, podsync.Hooks{})
	if err != nil {
		return nil, nil, err
	}
	pods, err := podsync.New(podsync.Config{
		Client: k.client.CoreV1(), Provider: provider, NodeName: k.nodeName, Gate: k.leases.Holds, // of two kubelets with one node name one acts
		Relist:        s.SyncInterval.Duration,
		Policy:        podsync.Policy{OrphanDelay: s.OrphanDelay.Duration, MassHold: s.MassHold.Duration},
		EventRecorder: k.recorder, ContainerEvents: k.containers,
		HostIPs: func(string) []string { return []string{k.nodeIP} },
		Hooks:   hooks,
	})
	return provider, pods, err
}

// newest returns the newest version of a pod, for volumes with its labels.
func (k *kubelet) newest(ref podsync.Ref) *corev1.Pod {
	info, _ := k.pods.Get(ref)
	return info.Pod
}

// assembleNode makes the controllers of the Node and of its lease.
func (k *kubelet) assembleNode(s settings, capacity corev1.ResourceList, condition nodestatus.Setter) (err error) {
	statusHooks, err1 := metrics.NodeStatus(k.registry, nodestatus.Hooks{
		Registered: func(r nodestatus.Registered) {
			fmt.Fprintf(k.stdout, "node %s: registered, UID %s\n", r.NodeName, r.Node.UID)
		},
		ConditionChanged: func(c nodestatus.ConditionChanged) {
			fmt.Fprintf(k.stdout, "node %s: %s=%s, %s: %s\n", c.NodeName, c.Condition.Type, c.Condition.Status, c.Condition.Reason, c.Condition.Message)
		},
	})
	leaseHooks, err2 := metrics.Lease(k.registry, lease.Hooks{})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	k.leases, err = lease.New(lease.Config{
		Client:           k.heartbeats.CoordinationV1(),
		ResetConnections: k.heartbeats.ResetConnections,
		NodeName:         k.nodeName,
		Hooks:            leaseHooks,
	})
	if err != nil {
		return err
	}
	k.node, err = nodestatus.New(nodestatus.Config{
		Client:          k.heartbeats.CoreV1(),
		NodeName:        k.nodeName,
		Lease:           k.leases,
		Template:        template(k.options, s),
		Setters:         append(k.setters(capacity), condition, nodestatus.DiskPressure(k.options.root, k.options.minFreeDisk)),
		HealthChecks:    []nodestatus.HealthCheck{k.podsAlive},
		NodeCredentials: k.nodeCredentials,
		// The Node comes back, its pods don't: the garbage collector of pods
		// deletes them, and podsync stops what runs.
		OnDeleted:     nodestatus.DeletedReregister,
		OnShutdown:    nodestatus.ShutdownNotReady,
		EventRecorder: k.recorder,
		Hooks:         statusHooks,
	})
	return err
}

// run runs the controllers until one of them ends or ctx is done. The pods run on,
// unless the node has been asked to end them.
func (k *kubelet) run(ctx context.Context, checkpoint *configcheckpoint.Controller[settings]) error {
	defer k.runtime.Close()
	ctx, cancel := k.drained(ctx)
	defer cancel()
	if k.cpus == nil {
		return kubewright.Run(ctx, k.leases, k.node, k.provider, k.pods, k.server, checkpoint)
	}
	return kubewright.Run(ctx, k.leases, k.node, k.provider, k.pods, k.server, k.cpus, checkpoint)
}

// changed has the Node's status written.
func (k *kubelet) changed() {
	if k.node != nil {
		k.node.Trigger(k.nodeName)
	}
}

// health is that of settings on trial: the controllers make progress. Whether
// the API server answers is not a matter of settings.
func (k *kubelet) health(context.Context) error {
	return errors.Join(k.node.Check(&http.Request{}), k.leases.Check(&http.Request{}), k.pods.Check(&http.Request{}))
}

// podsAlive is the health check of the Node: the loop of podsync moves, and its
// provider answers.
func (k *kubelet) podsAlive(ctx context.Context, nodeName string) error {
	if err := k.pods.CheckProvider(ctx, nodeName); err != nil {
		return &nodestatus.NotReadyError{Reason: "PodsStuck", Message: err.Error()}
	}
	return nil
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
