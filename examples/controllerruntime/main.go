// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Controllerruntime is a virtual node inside a manager of controller-runtime,
// for programs that already have one. It is a single Runnable that uses the
// manager's cache and health checks and shuts down in the right order. With
// --elect it is one of several replicas that manage the node in turn.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func main() { kube.Main(run) }

// gracefulShutdown is the manager's timeout for its Runnables. It must exceed
// the sum of their ShutdownTimeouts, three times 5 s; otherwise the manager
// would abort the last ones.
const gracefulShutdown = 20 * time.Second

func run(ctx context.Context, args []string, _ io.Writer) error {
	flags := kube.NewFlags("controllerruntime")
	nodeName := flags.NodeName()
	elect := flags.String("elect", "", "`name` of the Lease, in the namespace kubewright, that elects one of several replicas; empty for a single replica")
	host, _ := os.Hostname() // an empty identity is rejected later, by name
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
		// The reconcilers of this program and package podsync share one watch
		// of the node's pods.
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", *nodeName)},
		}},
		// LeaderElection is off: the manager's own election would end the
		// process when it is lost, and would hold back the node that this
		// replica manages.
		Metrics:                 metricsserver.Options{BindAddress: *metricsAddress},
		HealthProbeBindAddress:  *probeAddress,
		GracefulShutdownTimeout: &gracefulShutdown,
	})
	if err != nil {
		return err
	}
	provider := podsynctest.NewBackend(podsynctest.Options{}).Connect() // simulated pods that run nothing
	served, err := newSite(ctx, mgr, *nodeName, provider)
	if err != nil {
		return err
	}
	serve := served.run
	if *elect != "" {
		candidate, err := served.newCandidate(*elect, *identity)
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

// always turns a Run method into a Runnable that does not wait for the
// manager's leader election, unlike a manager.RunnableFunc.
type always func(ctx context.Context) error

// Start implements manager.Runnable.
func (f always) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (always) NeedLeaderElection() bool { return false }
