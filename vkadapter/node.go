// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/internal/dirlock"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/nodename"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

// DefaultName is the name of a Node in logs and health checks.
const DefaultName = "vkadapter"

// ErrAlreadyRun is the error of a second call of Node.Run.
var ErrAlreadyRun = errors.New("vkadapter: already run: a Node runs once")

// taintRests are the shortest and the longest time between two tries to write taints. A
// status that is written at the same time is a conflict.
const (
	minTaintRest = time.Second
	maxTaintRest = time.Minute
)

// NodeConfig configures a Node. The zero value of every optional field means the default
// that its comment states.
type NodeConfig struct {
	// Required. Client reads and writes everything. Its rate limit must be off (QPS -1). It
	// is the whole interface because nodeapi and the listers of the provider need it.
	Client kubernetes.Interface
	// Heartbeats is the client of the lease and of the node's status. It should have a
	// connection of its own. Default: Client.
	Heartbeats kubernetes.Interface

	// Template has the initial values of the Node, as NodeSpec of nodeutil.NodeConfig.
	// newProvider gets it as ProviderConfig.Node, and may change it. Conditions without a
	// status, and the Ready condition, are ignored. The labels of nodeutil are added if it does
	// not have them: type=virtual-kubelet, kubernetes.io/role=agent (not with NodeCredentials,
	// which may not set it) and kubernetes.io/hostname. Default: a Node with these labels.
	Template *corev1.Node
	// InternalIP is the address of the Node at which the API server reaches Address.
	// Required, unless Template has addresses or newProvider adds some to it.
	InternalIP string
	// Address is the TCP address of the node's HTTPS API. Default: all addresses of the
	// machine, and port 10250.
	Address string
	// Listener is used instead of Address if it is set. Run closes it.
	Listener net.Listener
	// NodeCredentials must be true if Client authenticates as system:node:NodeName.
	// Default: false, for a ServiceAccount or an administrator.
	NodeCredentials bool

	// LockDir is the directory in which the processes of this machine lock their node
	// names. If two processes have the same name, one acts and the other waits. Between
	// machines, the node's lease decides which process acts. Default: a directory of this
	// user in os.TempDir.
	LockDir string
	// EventRecorder records the events of the controllers and of virtual-kubelet. Default:
	// one that writes them with Client.
	EventRecorder events.EventRecorder

	// Adapter, Pods, Status, Lease and Server may change the configurations that NewNode
	// has made, for example policies, hooks, certificates and intervals. NewNode calls each
	// once, one after another, and they have no deadline. Default: the configurations are not changed.
	Adapter func(*Config)
	Pods    func(*podsync.Config)
	Status  func(*nodestatus.Config)
	Lease   func(*lease.Config)
	Server  func(*nodeapi.Config)
}

// A Node is a whole virtual node, as nodeutil.Node of virtual-kubelet: its pods, its status,
// its lease, and its HTTPS API with logs and exec. NewNode makes it. Its methods may be
// called concurrently.
type Node struct {
	name      string
	cfg       NodeConfig
	adapter   *Adapter
	pods      *podsync.Controller
	status    *nodestatus.Controller
	lease     *lease.Controller
	serverCfg nodeapi.Config
	server    atomic.Pointer[nodeapi.Server]
	port      atomic.Int32
	taints    tainter
	retaint   chan struct{}
	recorder  lateRecorder

	ran   atomic.Bool
	known chan struct{} // closed when the pods are known
	knows sync.Once
	ended chan struct{} // closed when Run ends
	ready readiness
}

// NewNode returns a Node with the provider that newProvider makes: a
// nodeutil.NewProviderFunc, or a function whose provider implements only
// node.PodLifecycleHandler. It calls newProvider once, and starts nothing itself. The error
// names every field of cfg that is wrong.
func NewNode[P node.PodLifecycleHandler](name string, newProvider func(nodeutil.ProviderConfig) (P, node.NodeProvider, error), cfg NodeConfig) (*Node, error) {
	n, err := newNode(name, newProvider != nil, cfg)
	if err != nil {
		return nil, err
	}
	provider, nodeProvider, err := newProvider(n.providerConfig())
	if err != nil {
		return nil, fmt.Errorf("vkadapter: create the provider: %w", err)
	}
	return n, n.build(provider, nodeProvider)
}

func newNode(name string, hasProvider bool, cfg NodeConfig) (*Node, error) {
	var problems []error
	problems = append(problems, lifecycle.Required("newProvider", hasProvider, "it makes the provider")...)
	problems = append(problems, nodename.CheckFirst("name", name, "", false)...)
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(field.NewPath("Client"), "a clientset"))
	}
	if cfg.InternalIP != "" && net.ParseIP(cfg.InternalIP) == nil {
		problems = append(problems, field.Invalid(field.NewPath("InternalIP"), cfg.InternalIP, "must be an IP address"))
	}
	if cfg.Template != nil && cfg.Template.Name != "" && cfg.Template.Name != name {
		problems = append(problems, field.Invalid(field.NewPath("Template", "Name"), cfg.Template.Name, "must be empty or the name of the node"))
	}
	if err := lifecycle.InvalidConfig("vkadapter", problems); err != nil {
		return nil, err
	}
	if lifecycle.IsNil(cfg.Heartbeats) {
		cfg.Heartbeats = cfg.Client
	}
	if cfg.LockDir == "" {
		cfg.LockDir = filepath.Join(os.TempDir(), fmt.Sprintf("kubewright-nodes-%d", os.Getuid()))
	}
	if cfg.Template = cfg.Template.DeepCopy(); cfg.Template == nil {
		cfg.Template = &corev1.Node{}
	}
	cfg.Template.Name = name
	defaults := map[string]string{"type": "virtual-kubelet", corev1.LabelHostname: name}
	if !cfg.NodeCredentials {
		defaults["kubernetes.io/role"] = "agent" // programs and their users select nodes by it
	}
	cfg.Template.Labels = merged(defaults, cfg.Template.Labels)
	n := &Node{name: name, cfg: cfg, known: make(chan struct{}), ended: make(chan struct{}), retaint: make(chan struct{}, 1)}
	n.ready.done = make(chan struct{})
	n.taints.nodes = cfg.Client.CoreV1()
	if cfg.EventRecorder != nil {
		n.recorder.to.Store(&cfg.EventRecorder)
	}
	return n, nil
}

// providerConfig returns what the provider is made of.
func (n *Node) providerConfig() nodeutil.ProviderConfig {
	core := n.cfg.Client.CoreV1()
	return nodeutil.ProviderConfig{
		Pods: podLister{n: n}, Secrets: newSecretLister(core), ConfigMaps: newConfigMapLister(core), Services: newServiceLister(core),
		Node: n.cfg.Template,
	}
}

// build makes the controllers.
func (n *Node) build(provider node.PodLifecycleHandler, nodeProvider node.NodeProvider) (err error) {
	template := n.cfg.Template
	template.Status.Conditions = slices.DeleteFunc(template.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady || c.Status == ""
	})
	n.taints.template = template.Spec.Taints
	if len(template.Status.Addresses) == 0 {
		if n.cfg.InternalIP == "" {
			return lifecycle.InvalidConfig("vkadapter", []error{field.Required(field.NewPath("InternalIP"), "neither Template nor the provider has an address")})
		}
		template.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.cfg.InternalIP}}
	}
	adapterCfg := Config{
		NodeName: n.name, Client: n.cfg.Client.CoreV1(), NodeProvider: nodeProvider, EventRecorder: &n.recorder,
		Controller: n.Pods,
		NodeChanged: func() {
			n.status.Trigger(n.name)
			n.wakeTaints()
		},
	}
	change(n.cfg.Adapter, &adapterCfg)
	if n.adapter, err = New(provider, adapterCfg); err != nil {
		return err
	}

	leaseCfg := lease.Config{
		Client: n.cfg.Heartbeats.CoordinationV1(), NodeName: n.name,
		OnShutdown: lease.ShutdownExpire, EventRecorder: &n.recorder, // a successor on another machine need not wait
	}
	change(n.cfg.Lease, &leaseCfg)
	if n.lease, err = lease.New(leaseCfg); err != nil {
		return err
	}

	podsCfg := podsync.Config{
		Client: n.cfg.Client.CoreV1(), NodeName: n.name, Provider: listening{n.adapter, n}, Gate: n.lease.Holds,
		Relist: n.adapter.Relist(), EventRecorder: &n.recorder,
		// Such providers compute the phase, and UpdatePod is for labels and annotations too.
		Policy:  podsync.Policy{TrustPhase: true, UpdateMetadata: true},
		HostIPs: func(string) []string { return n.hostIPs() },
	}
	change(n.cfg.Pods, &podsCfg)
	if n.pods, err = podsync.New(podsCfg); err != nil {
		return err
	}

	statusCfg := nodestatus.Config{
		Client: n.cfg.Heartbeats.CoreV1(), NodeName: n.name, Lease: n.lease, Template: template, NodeCredentials: n.cfg.NodeCredentials,
		Setters:   []nodestatus.Setter{nodestatus.StandardLabels(), n.setPort, nodestatus.DeclaredFeatures(nodeapi.FeatureWebSockets), diskUnknown, n.adapter.Setter},
		OnDeleted: nodestatus.DeletedReregister, OnShutdown: nodestatus.ShutdownNotReady, EventRecorder: &n.recorder,
		// A node whose pods are not looked after is not ready.
		HealthChecks: []nodestatus.HealthCheck{n.adapter.HealthCheck, n.pods.CheckProvider},
	}
	change(n.cfg.Status, &statusCfg)
	registered := statusCfg.Hooks.Registered
	statusCfg.Hooks.Registered = func(r nodestatus.Registered) {
		n.wakeTaints()
		if registered != nil {
			registered(r)
		}
	}
	if n.status, err = nodestatus.New(statusCfg); err != nil {
		return err
	}

	n.serverCfg = nodeapi.Config{
		NodeName: n.name, Backend: n.adapter.Backend(), Client: n.cfg.Client, Pods: n.pods.Pods, Address: n.cfg.Address, Listener: n.cfg.Listener,
		Checks: []nodeapi.Check{n.pods, n.status, n.lease}, Certificate: nodeapi.Certificate{Hosts: n.hostIPs()},
	}
	change(n.cfg.Server, &n.serverCfg)
	_, err = nodeapi.New(n.serverCfg) // that of Run has a listener
	return err
}

func change[T any](f func(*T), cfg *T) {
	if f != nil {
		f(cfg)
	}
}

// hostIPs returns the addresses of the node.
func (n *Node) hostIPs() (ips []string) {
	for _, address := range n.cfg.Template.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			ips = append(ips, address.Address)
		}
	}
	return ips
}

func (n *Node) setPort(_ context.Context, node *corev1.Node) error {
	if port := n.port.Load(); port != 0 {
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	}
	return nil
}

// Pods returns the controller of the pods, for Evict, Get and All.
func (n *Node) Pods() *podsync.Controller { return n.pods }

// Name returns DefaultName. With Check it is a health check.
func (n *Node) Name() string { return DefaultName }

// Check reports whether all parts make progress.
func (n *Node) Check(r *http.Request) error {
	errs := []error{n.pods.Check(r), n.status.Check(r), n.lease.Check(r)}
	if server := n.server.Load(); server != nil {
		errs = append(errs, server.Check(r))
	}
	return errors.Join(errs...)
}

// Ready returns a checker that is done when the Node is registered, its pods are known, and
// its HTTPS API is served.
func (n *Node) Ready() cache.DoneChecker { return &n.ready }

type readiness struct{ done chan struct{} }

func (*readiness) Name() string            { return DefaultName }
func (r *readiness) Done() <-chan struct{} { return r.done }

// Run runs the node until ctx is done, and returns nil then. It returns an error if it can't
// listen, if a controller can't go on, or if a call of the provider has not returned 24 s
// after ctx is done, and ErrAlreadyRun if it was called before. While
// another process of this machine runs a node of this name and cluster, it waits, and logs
// that. The pods keep running when it returns, and the next process finds them.
func (n *Node) Run(ctx context.Context) error {
	if n.ran.Swap(true) {
		return ErrAlreadyRun
	}
	defer close(n.ended)
	logger := klog.FromContext(ctx).WithName(DefaultName).WithValues("node", n.name)
	lock, err := dirlock.ForName(ctx, n.cfg.LockDir, n.lockName(), func() {
		logger.Info("Another process of this machine runs the node: waiting for its end")
	})
	if ctx.Err() != nil {
		return nil // stopped while it waited
	}
	if err != nil {
		return fmt.Errorf("vkadapter: lock the name of node %s: %w", n.name, err)
	}
	defer func() { _ = lock.Close() }()

	serverCfg := n.serverCfg
	if serverCfg.Listener == nil {
		if serverCfg.Listener, err = net.Listen("tcp", cmp.Or(serverCfg.Address, nodeapi.DefaultAddress)); err != nil {
			return fmt.Errorf("vkadapter: %w", err)
		}
		defer func() { _ = serverCfg.Listener.Close() }()
	}
	if tcp, ok := serverCfg.Listener.Addr().(*net.TCPAddr); ok {
		n.port.Store(int32(tcp.Port))
	}
	server, err := nodeapi.New(serverCfg)
	if err != nil {
		return err
	}
	n.server.Store(server)
	if n.cfg.EventRecorder == nil {
		shutdown, err := n.record(ctx)
		if err != nil {
			return err
		}
		defer shutdown()
	}
	return n.runAll(ctx, server)
}

// runAll runs the controllers.
func (n *Node) runAll(ctx context.Context, server *nodeapi.Server) error {
	return kubewright.Run(ctx, n.lease, n.status, part(n.runTaints), part(func(ctx context.Context) error {
		n.markReady(ctx, server)
		<-ctx.Done()
		return nil
	}), n.pods, server)
}

// A part is a function that runs like a controller.
type part func(ctx context.Context) error

// Run calls p.
func (p part) Run(ctx context.Context) error { return p(ctx) }

// markReady makes the Node ready when all its parts are.
func (n *Node) markReady(ctx context.Context, server *nodeapi.Server) {
	for _, part := range []cache.DoneChecker{server.Ready(), n.pods.Ready(), n.status.Ready()} {
		select {
		case <-part.Done():
		case <-ctx.Done():
			return
		}
	}
	close(n.ready.done)
}

// lockName returns the name of the lock: nodes of two clusters may have one name.
func (n *Node) lockName() string {
	host := ""
	if client, ok := n.cfg.Client.CoreV1().RESTClient().(*rest.RESTClient); ok && client != nil {
		host = client.Get().URL().Host
	}
	return fmt.Sprintf("%s-%.4x", n.name, sha256.Sum256([]byte(host)))
}

func (n *Node) wakeTaints() {
	select {
	case n.retaint <- struct{}{}:
	default:
	}
}

// runTaints writes the taints that the provider reports.
func (n *Node) runTaints(ctx context.Context) error {
	if n.cfg.NodeCredentials { // may not change taints
		<-ctx.Done()
		return nil
	}
	rest := minTaintRest
	timer := time.NewTimer(rest)
	defer timer.Stop()
	for {
		select {
		case <-n.retaint:
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		if n.lease.Holds(ctx, n.name) == nil && n.taints.write(ctx, n.status.Node(n.name), n.adapter.Node()) {
			rest = minTaintRest
			continue
		}
		timer.Reset(rest)
		rest = min(2*rest, maxTaintRest)
	}
}

// awaitPods waits until the pods are known.
func (n *Node) awaitPods() error {
	if !n.ran.Load() {
		return errNotRunning
	}
	select {
	case <-n.known:
	case <-n.ended:
	}
	select {
	case <-n.ended:
		return errNotRunning
	default:
		return nil
	}
}

// listening notes that podsync asks for a List, which it does when it knows the pods.
type listening struct {
	*Adapter
	n *Node
}

func (l listening) List(ctx context.Context) ([]podsync.State, error) {
	l.n.knows.Do(func() { close(l.n.known) })
	return l.Adapter.List(ctx)
}

// record makes the recorder of events.
func (n *Node) record(ctx context.Context) (shutdown func(), err error) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: n.cfg.Client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		broadcaster.Shutdown()
		return nil, fmt.Errorf("vkadapter: record events: %w", err)
	}
	recorder := events.EventRecorder(broadcaster.NewRecorder(scheme.Scheme, DefaultName))
	n.recorder.to.Store(&recorder)
	return func() {
		n.recorder.to.Store(nil)
		broadcaster.Shutdown()
	}, nil
}

// lateRecorder is a recorder that Run makes: one that writes has goroutines.
type lateRecorder struct {
	to atomic.Pointer[events.EventRecorder]
}

func (r *lateRecorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	if to := r.to.Load(); to != nil {
		(*to).Eventf(regarding, related, eventtype, reason, action, note, args...)
	}
}
