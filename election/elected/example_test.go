// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package elected_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/elected"
)

// New takes the place of ctrl.NewManager: everything that is added to the manager waits for
// the election.
func Example() {
	config := apitest.New(apitest.Options{}).Config(apitest.User{}) // ctrl.GetConfigOrDie() in a program
	options := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}}
	mgr, err := elected.New(config, options, election.Config{
		Client: kubernetes.NewForConfigOrDie(config).CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "default", Name: "balancer"},
		Self:   election.Peer{Identity: "balancer-1"},
		OnOverrun: func(err error) {
			panic(err) // a reconciler hangs, and another replica may lead: os.Exit in a program
		},
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	err = mgr.Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error {
		fmt.Println("balances")
		stop()
		<-ctx.Done()
		return nil
	}))
	if err != nil {
		panic(err)
	}
	fmt.Println(mgr.Start(ctx))
	// Output:
	// balances
	// <nil>
}
