// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Controllerruntime is a virtual node inside a manager of controller-runtime,
// for programs that have one already: one Runnable, on the manager's cache, with
// its health checks, and shut down in the right order. With --elect it is one of
// several replicas that serve the node in turn.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func main() { kube.Main(run) }

// gracefulShutdown is what the manager gives its Runnables: more than the sum
// of their ShutdownTimeouts, three of 5 s, or it would cut off the last ones.
const gracefulShutdown = 20 * time.Second

func run(ctx context.Context, args []string, _ io.Writer) error {
	flags := kube.NewFlags("controllerruntime")
	nodeName := flags.NodeName()
	elect := flags.String("elect", "", "`name` of the Lease, in the namespace kubewright, for which the replicas of this program stand; without it there is one replica")
	host, _ := os.Hostname() // an empty identity is refused later, by name
	identity := flags.String("identity", host, "`name` of this replica, for --elect")
	metricsAddress := flags.String("metrics-bind-address", ":8080", "`address` of the metrics, 0 for none")
	probeAddress := flags.String("health-probe-bind-address", ":8081", "`address` of /healthz and /readyz, 0 for none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	cfg.QPS = -1                     // the API server has its own limits
	log.SetLogger(klog.Background()) // the program's choice, not the library's
	gracefulShutdown := gracefulShutdown
	mgr, err := manager.New(cfg, manager.Options{
		// One watch of the node's pods serves the reconcilers of this program
		// and package podsync.
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", *nodeName)},
		}},
		// No LeaderElection: the manager's own ends the process when it is
		// lost, and would hold back the one node that this replica serves.
		Metrics:                 metricsserver.Options{BindAddress: *metricsAddress},
		HealthProbeBindAddress:  *probeAddress,
		GracefulShutdownTimeout: &gracefulShutdown,
	})
	if err != nil {
		return err
	}
	provider := podsynctest.NewBackend(podsynctest.Options{}).Connect() // pods that run by saying so
	served, err := newSite(ctx, mgr, *nodeName, provider)
	if err != nil {
		return err
	}
	serve := served.run
	if *elect != "" {
		candidate, err := election.New(election.Config{
			Client: served.heartbeats.CoordinationV1(),
			Lease:  types.NamespacedName{Namespace: "kubewright", Name: *elect},
			Self:   election.Peer{Identity: *identity},
			Lead:   func(ctx context.Context, _ election.Term) error { return served.run(ctx) },
		})
		if err != nil {
			return err
		}
		if err := mgr.AddHealthzCheck(candidate.Name(), candidate.Check); err != nil {
			return err
		}
		serve = candidate.Run
	}
	if err := errors.Join(mgr.Add(always(serve)), served.addChecks(mgr)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// always is a Run method as a Runnable that does not wait for the manager to be
// elected, which is what a manager.RunnableFunc does.
type always func(ctx context.Context) error

// Start implements manager.Runnable.
func (f always) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (always) NeedLeaderElection() bool { return false }
