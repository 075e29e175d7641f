// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package elected_test

import (
	"context"
	"errors"
	"fmt"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/election/elected"
)

// inEveryReplica is a runnable that does not wait for the election.
type inEveryReplica func(context.Context) error

func (f inEveryReplica) Start(ctx context.Context) error { return f(ctx) }

func (inEveryReplica) NeedLeaderElection() bool { return false }

// newManager makes the manager of a replica. The oldest emulation version leads. A cluster
// without the feature gate CoordinatedLeaderElection has no coordinator, so each replica runs
// one, which must not wait for the election that it decides. Without the gate an older version
// that comes later waits until the term of the leader ends.
func newManager(config *rest.Config, podName, version string) (*elected.Manager, error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	lease := types.NamespacedName{Namespace: "default", Name: "balancer"}
	warmUp := true // a replica whose caches don't sync takes no lease from one that works
	mgr, err := elected.New(config, ctrl.Options{
		Controller: ctrlconfig.Controller{EnableWarmup: &warmUp},
		Metrics:    metricsserver.Options{BindAddress: "0"},
	}, election.Config{
		Client:   clientset.CoordinationV1(),
		Lease:    lease,
		Self:     election.Peer{Identity: podName, BinaryVersion: version},
		Registry: election.LeaseCandidates(clientset.CoordinationV1beta1()),
		OnOverrun: func(err error) {
			panic(err) // os.Exit in a program
		},
	})
	if err != nil {
		return nil, err
	}
	coordinator, err := coordinator.New(coordinator.Config{
		Client:     clientset.CoordinationV1(),
		Candidates: clientset.CoordinationV1beta1(),
		Namespace:  lease.Namespace,
	})
	if err != nil {
		return nil, err
	}
	return mgr, mgr.Add(inEveryReplica(coordinator.Run))
}

// Coordinated election: candidates have versions, and a coordinator chooses the oldest. When
// another one takes over, the manager ends, and the program with it.
func Example_coordinated() {
	server := apitest.New(apitest.Options{
		Serve: []schema.GroupVersion{coordinationv1beta1.SchemeGroupVersion}, // --runtime-config
	})
	ctx, stop := context.WithCancel(context.Background())
	mgr, err := newManager(server.Config(apitest.User{}), "balancer-1", "1.4.0")
	if err != nil {
		panic(err)
	}
	err = mgr.Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error {
		fmt.Println("1.4.0 balances")
		stop()
		<-ctx.Done()
		return nil
	}))
	if err != nil {
		panic(err)
	}
	switch err := mgr.Start(ctx); {
	case errors.Is(err, election.ErrSuperseded):
		fmt.Println("an older version leads") // exit status 0
	case err != nil:
		fmt.Println(err) // exit status 1
	default:
		fmt.Println("stopped")
	}
	// Output:
	// 1.4.0 balances
	// stopped
}
