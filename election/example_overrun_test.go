// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// The work hangs, and another client takes the lease away. The process ends before another
// candidate begins, instead of working next to it.
func Example_endTheProcessWhenTheWorkOverruns() {
	server := apitest.New(apitest.Options{})
	exited := make(chan struct{})
	exit := func(code int) { // os.Exit in a program
		fmt.Println("exit status", code)
		close(exited)
	}
	ctx, cancel := context.WithCancel(context.Background())
	candidate, err := election.New(election.Config{
		Client: server.Client(apitest.User{}).CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "default", Name: "balancer"},
		Self:   election.Peer{Identity: "balancer-1"},
		Timing: election.Timing{LeaseDuration: 2 * time.Second, Drain: 10 * time.Millisecond},
		Lead: func(ctx context.Context, _ election.Term) error {
			apitest.Edit(server, "default", "balancer", func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions++ })
			<-ctx.Done()
			<-exited // a call that ignores the end of the context
			cancel()
			return nil
		},
		OnOverrun: func(err error) {
			fmt.Println(errors.Is(err, election.ErrLost))
			exit(1)
		},
	})
	if err != nil {
		panic(err)
	}
	if err := candidate.Run(ctx); err != nil {
		panic(err)
	}
	// Output:
	// true
	// exit status 1
}
