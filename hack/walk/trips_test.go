// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/hack/walk/record"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/podsync/podsynctest"
	"github.com/kubewright/kubewright/resourceslice"
)

// Each test of this file is a trip, or two. It shows that something happened on the
// way, as otherwise a short trip would be one that led nowhere. Trips use the public API
// only, and begin when the controller is at rest, except for those that are about its
// begin.

const nodeName = "node-1"

// running calls trips while the controller runs, which has been at rest for a moment.
func running(t *testing.T, ctx context.Context, run func(context.Context) error, trips func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	pass(31 * time.Second)
	trips()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestTripOfALease(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		node := s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}).(*corev1.Node)
		c, err := lease.New(lease.Config{
			Client: s.Client(apitest.User{}).CoordinationV1(), NodeName: nodeName,
			Owner: func(context.Context, string) (metav1.OwnerReference, error) {
				return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		running(t, t.Context(), c.Run, func() {
			renewed := func() *metav1.MicroTime {
				return apitest.Get[*coordinationv1.Lease](s, corev1.NamespaceNodeLease, nodeName).Spec.RenewTime
			}
			before := renewed()
			record.Walk(t, "lease-renewal", "lease", func() { pass(lease.DefaultDuration / 4) })
			if !before.Before(renewed()) {
				t.Error("the lease was not renewed")
			}
		})
	})
}

func TestTripOfANodesStatus(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		var version atomic.Value
		version.Store("1")
		c, err := nodestatus.New(nodestatus.Config{
			Client: s.Client(apitest.User{}).CoreV1(), NodeName: nodeName,
			Setters: []nodestatus.Setter{func(_ context.Context, n *corev1.Node) error {
				n.Labels = map[string]string{"version": version.Load().(string)}
				return nil
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		running(t, t.Context(), c.Run, func() {
			record.Walk(t, "nodestatus-change", "nodestatus", func() {
				version.Store("2")
				pass(10 * time.Second)
			})
			if got := apitest.Get[*corev1.Node](s, "", nodeName).Labels["version"]; got != "2" {
				t.Errorf("the Node has the label %q", got)
			}
		})
	})
}

func TestTripOfAPod(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		backend := podsynctest.NewBackend(podsynctest.Options{})
		c, err := podsync.New(podsync.Config{
			Client: s.Client(apitest.User{}).CoreV1(), NodeName: nodeName, Provider: backend.Connect(), Relist: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		running(t, t.Context(), c.Run, func() {
			record.Walk(t, "podsync-pod", "podsync", func() {
				s.Put(newPod())
				pass(3 * time.Second)
			})
			if phase := apitest.Get[*corev1.Pod](s, "default", "pod").Status.Phase; phase != corev1.PodRunning {
				t.Errorf("the pod is in phase %q", phase)
			}
		})
	})
}

func newPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "uid"},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}
}

func TestTripOfAContainer(t *testing.T) {
	root := t.TempDir()
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		core := s.Client(apitest.User{}).CoreV1()
		environment, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
		if err != nil {
			t.Fatal(err)
		}
		machine := &machine{}
		p, err := podruntime.New(podruntime.Config{
			Runtime: machine, Root: root, Environment: environment, HostIPs: []string{"192.0.2.1"}, Relist: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		running(t, t.Context(), p.Run, func() {
			record.Walk(t, "podruntime-container", "podsync/podruntime", func() {
				if _, err := p.Start(t.Context(), newPod()); err != nil {
					t.Error(err)
				}
				pass(5 * time.Second)
			})
			states, err := p.List(t.Context())
			if err != nil || len(states) != 1 || len(states[0].Status.ContainerStatuses) != 1 || states[0].Status.ContainerStatuses[0].State.Running == nil {
				t.Errorf("the provider has %+v, %v", states, err)
			}
		})
	})
}

// A machine is a Runtime whose containers run until the end.
type machine struct {
	mu         sync.Mutex
	containers []podruntime.Container
}

func (m *machine) List(context.Context, types.UID) ([]podruntime.Container, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]podruntime.Container(nil), m.containers...), nil
}

func (m *machine) Start(_ context.Context, spec podruntime.ContainerSpec) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.containers = append(m.containers, podruntime.Container{ID: spec.ID, State: podruntime.ContainerRunning, StartedAt: time.Now()})
	return nil
}

func (m *machine) Stop(context.Context, podruntime.ContainerID, podruntime.StopOptions) error {
	return nil
}

func (m *machine) Remove(context.Context, podruntime.ContainerID) error { return nil }

func TestTripOfAPool(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
		client := s.Client(apitest.NodeUser(nodeName))
		c, err := resourceslice.New(resourceslice.Config{
			Client: client.ResourceV1(), NodeName: nodeName, Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), nodeName),
		})
		if err != nil {
			t.Fatal(err)
		}
		set := func(model string) {
			device := resourcev1.Device{Name: "device", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}}}
			if err := c.Set(resourceslice.PoolID{Driver: "gpu.example.com", Name: nodeName}, resourceslice.Pool{Devices: []resourcev1.Device{device}}); err != nil {
				t.Error(err)
			}
		}
		set("a")
		running(t, t.Context(), c.Run, func() {
			record.Walk(t, "resourceslice-set", "resourceslice", func() {
				set("b")
				pass(5 * time.Second)
			})
			slices, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
			if err != nil || len(slices.Items) != 1 || *slices.Items[0].Spec.Devices[0].Attributes["model"].StringValue != "b" {
				t.Errorf("the API server has %+v, %v", slices, err)
			}
		})
	})
}

func TestTripOfALeader(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		leading := false
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		record.Walk(t, "election-claim", "election", func() {
			c, err := election.New(election.Config{
				Client: s.Client(apitest.User{}).CoordinationV1(), Self: election.Peer{Identity: "a"},
				Lease: types.NamespacedName{Namespace: "default", Name: "leader"},
				Lead: func(ctx context.Context, _ election.Term) error {
					leading = true
					<-ctx.Done()
					return nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			go func() { done <- c.Run(ctx) }()
			pass(7 * time.Second) // the claim and two renewals
		})
		if !leading {
			t.Error("it does not lead")
		}
		writes := len(s.Requests(apitest.Match{Verb: "update"}))
		record.Walk(t, "election-renewal", "election", func() { pass(3 * time.Second) })
		if len(s.Requests(apitest.Match{Verb: "update"})) == writes {
			t.Error("the lease was not renewed")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTripsOfAConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// life is a process: it boots, and runs until it must restart.
	life := func(want string, boot, delivery func(func())) {
		source, err := configcheckpoint.File(file, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		c, err := configcheckpoint.New(configcheckpoint.Config[string]{
			Dir: filepath.Join(dir, "slots"), Source: source, Build: "1",
			Codec: configcheckpoint.Codec[string]{
				Decode:  func(text []byte) (string, error) { return string(text), nil },
				Default: func() (string, error) { return "default", nil },
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		boot(func() {
			if got, err := c.Boot(t.Context()); err != nil || got.Config != want {
				t.Errorf("booted with %q, %v, want %q", got.Config, err, want)
			}
		})
		delivery(func() {
			if err := c.Run(t.Context()); err == nil {
				t.Error("nothing was delivered")
			}
		})
		if err := c.Close(nil); err != nil {
			t.Error(err)
		}
	}
	trip := func(name string) func(func()) {
		return func(f func()) { record.Walk(t, name, "configcheckpoint", f) }
	}
	call := func(f func()) { f() }
	write("1")
	life("default", call, call)
	write("2")
	life("1", trip("configcheckpoint-boot"), trip("configcheckpoint-delivery"))
}
