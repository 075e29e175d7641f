// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

// A site is the part of a node that is the same in each term of this replica.
type site struct {
	nodeName   string
	heartbeats *kube.HeartbeatClient
	pods       *kubernetes.Clientset
	informer   toolscache.SharedIndexInformer
	recorder   events.EventRecorder
	provider   podsync.Provider
	lastWords  time.Duration        // for the final statuses of pods when a term ends; 0 for the default
	now        atomic.Pointer[node] // nil while this replica does not manage it
}

func newSite(ctx context.Context, mgr manager.Manager, nodeName string, provider podsync.Provider) (*site, error) {
	heartbeats, err := kube.Heartbeats(mgr.GetConfig())
	if err != nil {
		return nil, err
	}
	// The manager's connection is used for everything except heartbeats.
	pods, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	shared, err := mgr.GetCache().GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	informer, ok := shared.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("the manager's cache has a %T, no informer of client-go", shared)
	}
	return &site{
		nodeName: nodeName, heartbeats: heartbeats, pods: pods, informer: informer,
		recorder: mgr.GetEventRecorder("kubewright-node"), provider: provider,
	}, nil
}

// newCandidate returns a candidate whose work is the node.
func (s *site) newCandidate(name, identity string) (*election.Candidate, error) {
	timing := election.Timing{}.WithDefaults()
	s.lastWords = timing.Drain / 2
	return election.New(election.Config{
		Client: s.heartbeats.CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "kubewright", Name: name},
		Self:   election.Peer{Identity: identity},
		Timing: timing,
		Lead:   func(ctx context.Context, _ election.Term) error { return s.run(ctx) },
		OnOverrun: func(err error) {
			// Another replica manages the node now.
			klog.ErrorS(err, "The node's controllers do not stop")
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		},
	})
}

// run manages the node until ctx is done. Each term has its own controllers,
// because a controller runs once. The lease ends last, because the node is
// alive while the last statuses of its pods are written. If each controller
// were a separate Runnable, the manager would end all of them at the same time.
func (s *site) run(ctx context.Context) error {
	n, err := s.newNode()
	if err != nil {
		return err
	}
	s.now.Store(n)
	defer s.now.Store(nil)
	return kubewright.Run(ctx, n.lease, n.status, n.pods)
}

// A node holds the controllers of one term.
type node struct {
	lease  *lease.Controller
	status *nodestatus.Controller
	pods   *podsync.Controller
}

func (s *site) newNode() (*node, error) {
	n := &node{}
	var err1, err2, err3 error
	n.lease, err1 = lease.New(lease.Config{
		Client:           s.heartbeats.CoordinationV1(),
		ResetConnections: s.heartbeats.ResetConnections,
		NodeName:         s.nodeName,
		// For the lease, all replicas are one process, so that the next leader
		// renews it at once: the election decides which replica that is.
		Process:       s.nodeName,
		EventRecorder: s.recorder,
	})
	n.status, err2 = nodestatus.New(nodestatus.Config{
		Client:   s.heartbeats.CoreV1(),
		NodeName: s.nodeName,
		Lease:    n.lease,
		Template: &corev1.Node{Spec: corev1.NodeSpec{
			// Pods here run nothing, so only pods that tolerate this may be
			// scheduled.
			Taints: []corev1.Taint{{Key: "kubewright.dev/pretends", Effect: corev1.TaintEffectNoExecute}},
		}},
		Setters: nodestatus.Standard(nodestatus.ContainerRuntime("pretend://1"), nodestatus.Capacity(corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("32Gi"),
		}, nil)),
		// CheckProvider of podsync is not one of these: the node would not be ready for a
		// moment when another replica takes over, until that one knows the pods.
		HealthChecks: []nodestatus.HealthCheck{func(context.Context, string) error { return n.pods.Check(nil) }},
		OnDeleted:    nodestatus.DeletedReregister,
		// OnShutdown is left at ShutdownLeave: the node stays Ready while
		// another replica takes over or this one returns.
		EventRecorder: s.recorder,
	})
	n.pods, err3 = podsync.New(podsync.Config{
		Client:   s.pods.CoreV1(),
		NodeName: s.nodeName,
		Gate:     n.lease.Holds,
		Informer: s.informer,
		Provider: s.provider,
		// If the shutdown took longer than Timing.Drain and the lease could not be
		// renewed, two replicas would manage the node. The other two controllers
		// write nothing when they end.
		ShutdownTimeout: s.lastWords,
		EventRecorder:   s.recorder,
	})
	return n, errors.Join(err1, err2, err3)
}

// addChecks adds the checks of the three controllers. The manager accepts
// checks only before it starts, so these look up the controllers of the current
// term. A standby replica is healthy and ready.
func (s *site) addChecks(mgr manager.Manager) error {
	while := func(check func(n *node, r *http.Request) error) healthz.Checker {
		return func(r *http.Request) error {
			if n := s.now.Load(); n != nil {
				return check(n, r)
			}
			return nil
		}
	}
	ready := func(of func(n *node) toolscache.DoneChecker) healthz.Checker {
		return while(func(n *node, _ *http.Request) error {
			checker := of(n)
			select {
			case <-checker.Done():
				return nil
			default:
				return fmt.Errorf("%s is not ready", checker.Name())
			}
		})
	}
	return errors.Join(
		mgr.AddHealthzCheck(lease.DefaultName, while(func(n *node, r *http.Request) error { return n.lease.Check(r) })),
		mgr.AddHealthzCheck(nodestatus.DefaultName, while(func(n *node, r *http.Request) error { return n.status.Check(r) })),
		mgr.AddHealthzCheck(podsync.DefaultName, while(func(n *node, r *http.Request) error { return n.pods.Check(r) })),
		mgr.AddReadyzCheck(lease.DefaultName, ready(func(n *node) toolscache.DoneChecker { return n.lease.Ready() })),
		mgr.AddReadyzCheck(nodestatus.DefaultName, ready(func(n *node) toolscache.DoneChecker { return n.status.Ready() })),
		mgr.AddReadyzCheck(podsync.DefaultName, ready(func(n *node) toolscache.DoneChecker { return n.pods.Ready() })),
	)
}
