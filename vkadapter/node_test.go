// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

func newScripted(nodeutil.ProviderConfig) (*scripted, node.NodeProvider, error) {
	return &scripted{}, nil, nil
}

// run runs a node. The returned function ends it.
func run(t *testing.T, n *Node) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// counts counts calls that come from several goroutines.
type counts struct {
	mu sync.Mutex
	by map[string]int
}

func (c *counts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = make(map[string]int)
	}
	c.by[what]++
}

func (c *counts) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[what]
}

// The hooks of the program are called beside those of NewNode, which bind the controllers: a Node
// that is deleted is registered again.
func TestHooksOfTheProgramAreCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		var calls counts
		n, err := NewNode("vk", newScripted, NodeConfig{
			Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: newSilentListener(), LockDir: t.TempDir(),
			Status: func(cfg *nodestatus.Config) {
				cfg.Hooks.Registered = func(r nodestatus.Registered) { calls.add("registered " + r.NodeName) }
			},
			Lease: func(cfg *lease.Config) {
				cfg.Hooks.PhaseChanged = func(p lease.PhaseChanged) { calls.add(fmt.Sprint("phase ", p.To)) }
				cfg.Hooks.Recovered = func(r lease.Recovered) { calls.add("recovered " + r.NodeName) }
				cfg.Hooks.Deleted = func(d lease.Deleted) { calls.add("deleted " + d.NodeName) }
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		end := run(t, n)
		time.Sleep(time.Second) // registered and held at once, not with the next turn of the lease
		synctest.Wait()
		if calls.of("registered vk") != 1 || calls.of("phase Held") != 1 {
			t.Errorf("calls %v", calls.by)
		}
		select {
		case <-n.Ready().Done():
		default:
			t.Error("the node is not ready after a second")
		}
		if err := n.Check(nil); err != nil || n.Name() != DefaultName || n.Ready().Name() != DefaultName {
			t.Errorf("Check = %v, names %s and %s", err, n.Name(), n.Ready().Name())
		}
		away := s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
		time.Sleep(5 * time.Minute)
		if err := n.Check(nil); err != nil {
			t.Errorf("Check = %v: a restart does not bring the API server back", err)
		}
		away()
		time.Sleep(time.Minute)
		if calls.of("recovered vk") != 1 {
			t.Errorf("calls %v after an outage", calls.by)
		}
		apitest.Remove[*corev1.Node](s, "", "vk")
		apitest.Remove[*coordinationv1.Lease](s, corev1.NamespaceNodeLease, "vk")
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls.of("registered vk") != 2 || calls.of("deleted vk") != 1 || apitest.Get[*corev1.Node](s, "", "vk") == nil {
			t.Errorf("calls %v after the deletion", calls.by)
		}
		end()
	})
}

// A part that can't go on ends the others, and is named.
func TestAPartThatEndsEndsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		listener := newSilentListener()
		_ = listener.Close()
		n, err := NewNode("vk", newScripted, NodeConfig{
			Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: listener, LockDir: t.TempDir(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Run(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Run = %v, want the error of the listener", err)
		}
	})
}

// silentListener accepts nothing.
type silentListener struct{ done chan struct{} }

func newSilentListener() *silentListener { return &silentListener{done: make(chan struct{})} }

func (l *silentListener) Accept() (net.Conn, error) {
	<-l.done
	return nil, net.ErrClosed
}

func (l *silentListener) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (*silentListener) Addr() net.Addr { return &net.UnixAddr{Name: "nowhere"} }

// Without a Listener, a Node listens at Address, and its Node has the port.
func TestANodeListensAtItsAddress(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var server nodeapi.Config
	cfg := NodeConfig{
		Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", Address: "127.0.0.1:0", LockDir: t.TempDir(),
		Server: func(cfg *nodeapi.Config) { server = *cfg },
	}
	first, err := NewNode("first", newScripted, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(server.Certificate.Hosts) != 1 || server.Certificate.Hosts[0] != "192.0.2.1" || len(server.Checks) != 3 {
		t.Errorf("the server's configuration is %+v", server)
	}
	end := run(t, first)
	<-first.Ready().Done()
	address := fmt.Sprintf("127.0.0.1:%d", apitest.Get[*corev1.Node](s, "", "first").Status.DaemonEndpoints.KubeletEndpoint.Port)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	cfg.Address = address
	second, err := NewNode("second", newScripted, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("Run = %v, want an error with the address that is in use", err)
	}
	end()
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("the address is served after Run")
	}
}

type noREST struct{ kubernetes.Interface }

func (noREST) CoreV1() corev1client.CoreV1Interface { return corev1client.New(nil) }

// Nodes of one name in two clusters are two.
func TestTheLockIsOfANodeInACluster(t *testing.T) {
	name := func(node, host string) string {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		return (&Node{name: node, cfg: NodeConfig{Client: client}}).lockName()
	}
	a := name("vk", "https://a.example")
	if a != name("vk", "https://a.example") || a == name("vk", "https://b.example") || a == name("vk-2", "https://a.example") || !strings.HasPrefix(a, "vk-") {
		t.Errorf("the lock of vk is %s", a)
	}
	if got := (&Node{name: "vk", cfg: NodeConfig{Client: noREST{}}}).lockName(); !strings.HasPrefix(got, "vk-") {
		t.Errorf("with a client that has no address it is %s", got)
	}
}

// What NewNode takes from the Template, and what the program may change.
func TestTheTemplateOfANode(t *testing.T) {
	s := apitest.New(apitest.Options{})
	template := &corev1.Node{Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "host"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.7"}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True"}, {Type: "Empty"}, {Type: "Kept", Status: "True"}},
	}}
	var pods podsync.Config
	var status nodestatus.Config
	n, err := NewNode("vk", newScripted, NodeConfig{
		Client: s.Client(apitest.User{}), Template: template, LockDir: t.TempDir(),
		Pods:   func(cfg *podsync.Config) { pods = *cfg },
		Status: func(cfg *nodestatus.Config) { status = *cfg },
	})
	if err != nil {
		t.Fatal(err)
	}
	if ips := pods.HostIPs(""); len(ips) != 1 || ips[0] != "192.0.2.7" {
		t.Errorf("addresses of pods %v", ips)
	}
	got := status.Template
	if got.Name != "vk" || len(got.Status.Conditions) != 1 || got.Status.Conditions[0].Type != "Kept" || len(got.Labels) != 3 || len(got.Status.Addresses) != 2 {
		t.Errorf("the template became %+v", got)
	}
	if template.Name != "" || len(template.Status.Conditions) != 3 {
		t.Error("the program's template was changed")
	}
	if !pods.Policy.TrustPhase || !pods.Policy.UpdateMetadata || pods.Relist != 5*time.Second || status.OnShutdown != nodestatus.ShutdownNotReady {
		t.Errorf("policy %+v, relist %v, shutdown %v", pods.Policy, pods.Relist, status.OnShutdown)
	}
	if n.Pods() == nil {
		t.Error("there is no controller of pods")
	}
	if _, err := NewNode("vk", newScripted, NodeConfig{Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", LockDir: t.TempDir(), Status: func(cfg *nodestatus.Config) { status = *cfg }}); err != nil {
		t.Fatal(err)
	}
	if got := status.Template; got.Labels["type"] != "virtual-kubelet" || len(got.Status.Addresses) != 1 || got.Status.Addresses[0].Address != "192.0.2.1" {
		t.Errorf("the default template is %+v", got)
	}
	// The API server refuses a Node whose own credentials set a role.
	if _, err := NewNode("vk", newScripted, NodeConfig{Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", NodeCredentials: true, LockDir: t.TempDir(), Status: func(cfg *nodestatus.Config) { status = *cfg }}); err != nil {
		t.Fatal(err)
	}
	if _, role := status.Template.Labels["kubernetes.io/role"]; role || status.Template.Labels["type"] != "virtual-kubelet" {
		t.Errorf("with the credentials of a node the labels are %v", status.Template.Labels)
	}
}

// What a program sets wrong in one of the configurations is an error of NewNode.
func TestWrongConfigurationsOfAProgram(t *testing.T) {
	for want, change := range map[string]func(cfg *NodeConfig){
		"vkadapter:":  func(cfg *NodeConfig) { cfg.Adapter = func(c *Config) { c.NodeName = "" } },
		"podsync:":    func(cfg *NodeConfig) { cfg.Pods = func(c *podsync.Config) { c.NodeName = "" } },
		"nodestatus:": func(cfg *NodeConfig) { cfg.Status = func(c *nodestatus.Config) { c.NodeName = "" } },
		"lease:":      func(cfg *NodeConfig) { cfg.Lease = func(c *lease.Config) { c.NodeName = "" } },
		"nodeapi:":    func(cfg *NodeConfig) { cfg.Server = func(c *nodeapi.Config) { c.NodeName = "" } },
	} {
		cfg := NodeConfig{Client: apitest.New(apitest.Options{}).Client(apitest.User{}), InternalIP: "192.0.2.1", LockDir: t.TempDir()}
		change(&cfg)
		if _, err := NewNode("vk", newScripted, cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want an error that begins with %s", err, want)
		}
	}
}

// Of two pods of one name the newer one counts, and each namespace has its own.
func TestPodsOfALister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		for _, namespace := range []string{"default", "other"} {
			for _, name := range []string{"web", "db"} {
				s.Put(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
					Spec:       corev1.PodSpec{NodeName: "vk", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
				})
			}
		}
		var pc nodeutil.ProviderConfig
		n, err := NewNode("vk", func(c nodeutil.ProviderConfig) (*creating, node.NodeProvider, error) {
			pc = c
			return &creating{}, nil, nil
		}, NodeConfig{Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: newSilentListener(), LockDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		end := run(t, n)
		time.Sleep(time.Second)
		selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}})
		if err != nil {
			t.Fatal(err)
		}
		all, err1 := pc.Pods.List(selector)
		own, err2 := pc.Pods.Pods("other").List(selector)
		one, err3 := pc.Pods.Pods("other").Get("db")
		if err := errors.Join(err1, err2, err3); err != nil || len(all) != 2 || len(own) != 1 || own[0].Namespace != "other" || one.Name != "db" || one.Namespace != "other" {
			t.Errorf("%d pods, %d in a namespace, and %v (%v)", len(all), len(own), one, err)
		}
		end()
		if _, err := pc.Pods.Pods("other").Get("db"); !errors.Is(err, errNotRunning) {
			t.Errorf("after Run: %v", err)
		}
	})
}

// Which pods are those of other nodes, and which names pods of the API have, is known from the
// controller.
func TestWhatTheControllerKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		ended := webPod("1", "Succeeded")
		s.Put(ended)
		orphan := webPod("2", "Running")
		orphan.Name, orphan.Spec.NodeName = "orphan", ""
		n, err := NewNode("vk", func(nodeutil.ProviderConfig) (*creating, node.NodeProvider, error) {
			return &creating{scripted: scripted{list: []*corev1.Pod{orphan}, podErr: errPod}}, nil, nil
		}, NodeConfig{Client: s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: newSilentListener(), LockDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		end := run(t, n)
		time.Sleep(10 * time.Second)
		f := n.adapter.finder
		pod := func(name string, uid types.UID, node string) *corev1.Pod {
			pod := webPod(uid, "Running")
			pod.Name, pod.Spec.NodeName = name, node
			return pod
		}
		f.held.forget(refWeb)
		f.held.handOver(pod("handed", "3", ""))
		for what, c := range map[string]struct {
			pod  *corev1.Pod
			want bool
		}{
			"a pod of this node's API":        {pod("web", "1", "host-7"), false},
			"an instance that is an orphan":   {pod("orphan", "2", "host-7"), true},
			"a pod of another node":           {pod("other", "9", "host-7"), true},
			"– without a UID":                 {pod("other", "", "host-7"), false},
			"one that was handed over":        {pod("handed", "3", "host-7"), false},
			"one that does not name its node": {pod("other", "9", ""), false},
			"one of this node":                {pod("other", "9", "vk"), false},
		} {
			if got := f.foreign(podsync.RefOf(c.pod), c.pod); got != c.want {
				t.Errorf("%s: foreign %v, want %v", what, got, c.want)
			}
		}
		taken := f.takenNames()
		for name, want := range map[string]bool{"web": true, "orphan": false, "other": false} {
			if got := taken(types.NamespacedName{Namespace: "default", Name: name}); got != want {
				t.Errorf("the name %s is taken: %v, want %v", name, got, want)
			}
		}
		if got := f.held.candidates(nil); !slices.Contains(got, refWeb) {
			t.Errorf("candidates %v, want the pod of the API among them", got)
		}
		none := func() *podsync.Controller { return nil }
		for what, blind := range map[string]*finder{"client": {controller: f.controller}, "controller": {client: f.client, controller: none}} {
			if !blind.takenNames()(types.NamespacedName{}) {
				t.Errorf("a name is free, and without a %s nobody can tell", what)
			}
		}
		end()
	})
}
