// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/resourceslice"
)

// driver is the name of the driver of the node's devices.
const driver = "accelerator.kubewright.dev"

// A site is the part of the node that is the same in each term of this replica.
type site struct {
	nodeName        string
	nodeCredentials bool
	syncInterval    time.Duration
	lastWords       time.Duration // for shutdown work when a term ends
	cloud           string
	cloudClient     *http.Client
	heartbeats      *kube.HeartbeatClient
	client          *kubernetes.Clientset
	recorder        events.EventRecorder
	candidate       *election.Candidate
	condition       nodestatus.Setter
	printf          func(format string, args ...any)

	mu       sync.Mutex
	settings settings
	now      *node // nil while this replica stands by
}

// serve manages the node for a term, until ctx is done: it is the LeadFunc of
// the candidate. All controllers of the node belong to one term, because a
// controller runs once. The lease ends last, because the node is alive while
// the last statuses of its pods are written. The pods keep running.
func (s *site) serve(ctx context.Context, term election.Term) error {
	n, err := s.newNode(term)
	if err != nil {
		return err
	}
	if err := s.enter(n); err != nil {
		return err
	}
	defer s.leave()
	s.printf("node %s: served with token %d", s.nodeName, term.Token())
	err = kubewright.Run(ctx, n.lease, n.status, n.pods, n.devices)
	s.printf("node %s: left to the others: %v", s.nodeName, context.Cause(ctx))
	return err
}

// A node holds the controllers of one term.
type node struct {
	lease   *lease.Controller
	status  *nodestatus.Controller
	pods    *podsync.Controller
	devices *resourceslice.Controller
}

func (s *site) newNode(term election.Term) (n *node, err error) {
	n = &node{}
	n.lease, err = lease.New(lease.Config{
		Client:           s.heartbeats.CoordinationV1(),
		ResetConnections: s.heartbeats.ResetConnections,
		NodeName:         s.nodeName,
		// For the lease, both replicas are one process, so that the next leader
		// renews it at once: the election decides which replica that is.
		Process:       s.nodeName,
		EventRecorder: s.recorder,
	})
	if err != nil {
		return nil, err
	}
	n.pods, err = podsync.New(podsync.Config{
		Client:   s.client.CoreV1(),
		NodeName: s.nodeName,
		Gate:     n.lease.Holds,
		Provider: &provider{client: s.cloudClient, pods: s.cloud + "/nodes/" + s.nodeName + "/pods", term: term},
		Relist:   relist,
		Policy:   podsync.Policy{ExclusiveBackend: true}, // the URL contains the node's name
		// If the shutdown took longer than Timing.Drain and the lease could not
		// be renewed, two replicas would manage the node.
		ShutdownTimeout: s.lastWords,
		EventRecorder:   s.recorder,
		Hooks: podsync.Hooks{ProviderCall: func(c podsync.ProviderCall) {
			if c.Err != nil {
				s.printf("pod %s: %s: %v", c.Ref, c.Op, c.Err)
			}
		}},
	})
	if err != nil {
		return nil, err
	}
	n.devices, err = resourceslice.New(resourceslice.Config{
		Client:          s.client.ResourceV1(),
		NodeName:        s.nodeName,
		Driver:          driver,
		Owner:           resourceslice.NodeOwner(s.client.CoreV1().Nodes(), s.nodeName),
		ShutdownTimeout: s.lastWords,
	})
	if err != nil {
		return nil, err
	}
	n.status, err = nodestatus.New(nodestatus.Config{
		Client:          s.heartbeats.CoreV1(),
		NodeName:        s.nodeName,
		Lease:           n.lease,
		NodeCredentials: s.nodeCredentials,
		Template: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "virtual-kubewright"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "kubewright.dev/virtual", Effect: corev1.TaintEffectNoSchedule}}},
		},
		Setters: []nodestatus.Setter{nodestatus.StandardLabels(), nodestatus.ContainerRuntime("cloud://1"), s.capacity, s.condition},
		HealthChecks: []nodestatus.HealthCheck{func(ctx context.Context, name string) error {
			if err := n.pods.CheckProvider(ctx, name); err != nil {
				return &nodestatus.NotReadyError{Reason: "PodsStuck", Message: err.Error()}
			}
			return nil
		}},
		SyncInterval: s.syncInterval,
		OnDeleted:    nodestatus.DeletedReregister,
		// The node stays Ready while the other replica takes over or this one
		// returns.
		OnShutdown:    nodestatus.ShutdownLeave,
		EventRecorder: s.recorder,
	})
	return n, err
}

// enter makes n the node to which settings apply.
func (s *site) enter(n *node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = n
	return s.offer(s.settings.Devices)
}

func (s *site) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = nil
}

// offer publishes the node's devices if this replica manages the node. s.mu
// must be held.
func (s *site) offer(count int) error {
	if s.now == nil {
		return nil
	}
	devices := make([]resourcev1.Device, count)
	for i := range devices {
		devices[i] = resourcev1.Device{
			Name:       fmt.Sprintf("accelerator-%d", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"index": {IntValue: new(int64(i))}},
		}
	}
	return s.now.devices.Set(resourceslice.PoolID{Driver: driver, Name: s.nodeName}, resourceslice.Pool{Devices: devices})
}

// apply applies settings. On a standby replica they take effect in its next
// term.
func (s *site) apply(_ context.Context, active configcheckpoint.Active[settings]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings = active.Config
	if s.now != nil {
		s.now.status.Trigger(s.nodeName)
	}
	return s.offer(active.Config.Devices)
}

// changed triggers a write of the Node's status.
func (s *site) changed() {
	if n := s.current(); n != nil {
		n.status.Trigger(s.nodeName)
	}
}

func (s *site) current() *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// capacity is a nodestatus.Setter.
func (s *site) capacity(ctx context.Context, node *corev1.Node) error {
	s.mu.Lock()
	pods := s.settings.Pods
	s.mu.Unlock()
	return nodestatus.Capacity(corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   *resource.NewQuantity(int64(pods), resource.DecimalSI),
	}, nil)(ctx, node)
}

// health is the health check of settings on trial. A standby replica can check
// little: that it runs and could take over. Only the active replica finds out
// that settings are bad; each replica decides for itself.
func (s *site) health(context.Context) error {
	if n := s.current(); n != nil {
		return errors.Join(s.candidate.Check(nil), n.lease.Check(nil), n.status.Check(nil), n.pods.Check(nil), n.devices.Check(nil))
	}
	return s.candidate.Check(nil)
}
