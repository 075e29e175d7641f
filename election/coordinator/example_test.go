// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator_test

import (
	"context"
	"fmt"
	"sync"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
)

// A Controller in each replica of a program, of which one works: the one whose
// Candidate leads. With this Lease it also takes the place of the controllers
// inside the API servers of the cluster.
func ExampleController() {
	server := apitest.New(apitest.Options{
		Serve: []schema.GroupVersion{coordinationv1beta1.SchemeGroupVersion},
		Gates: map[apitest.Gate]bool{apitest.CoordinatedLeaderElection: true},
	})
	clientset := server.Client(apitest.User{}) // in a program kubernetes.NewForConfig
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	replica, err := election.New(election.Config{
		Client: clientset.CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "kube-system", Name: coordinator.BuiltInLease},
		Self:   election.Peer{Identity: "coordinator-0"},
		Lead: func(ctx context.Context, _ election.Term) error {
			controller, err := coordinator.New(coordinator.Config{
				Client:     clientset.CoordinationV1(),
				Candidates: clientset.CoordinationV1beta1(),
			})
			if err != nil {
				return err
			}
			return controller.Run(ctx) // for one term
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// Some program that leaves it to the Controller who leads.
	scheduler, err := election.New(election.Config{
		Client:   clientset.CoordinationV1(),
		Lease:    types.NamespacedName{Namespace: "kube-system", Name: "scheduler"},
		Self:     election.Peer{Identity: "scheduler-0", BinaryVersion: "1.37.0"},
		Registry: election.LeaseCandidates(clientset.CoordinationV1beta1()),
		Lead: func(context.Context, election.Term) error {
			fmt.Println("scheduler-0 leads")
			cancel()
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	var running sync.WaitGroup
	for _, candidate := range []*election.Candidate{replica, scheduler} {
		running.Go(func() {
			if err := candidate.Run(ctx); err != nil {
				fmt.Println(err)
			}
		})
	}
	running.Wait()
	// Output: scheduler-0 leads
}
