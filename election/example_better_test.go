// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// A better candidate comes, and the leader hands over as soon as its work has
// returned.
func Example_betterCandidate() {
	server := apitest.New(apitest.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var first, second *election.Candidate
	secondMayStart, ended := make(chan struct{}), make(chan error, 2)

	config := func(name, version string, lead election.LeadFunc) election.Config {
		return election.Config{
			Client:   server.Client(apitest.User{Name: name}).CoordinationV1(),
			Lease:    types.NamespacedName{Namespace: "default", Name: "balancer"},
			Self:     election.Peer{Identity: name, BinaryVersion: version},
			Strategy: election.NewestVersion(),
			Timing:   election.Timing{MinTenure: 1}, // no need to settle
			Lead:     lead,
		}
	}
	first, err := election.New(config("balancer-1", "1.4.0", func(ctx context.Context, _ election.Term) error {
		fmt.Println("1.4.0 leads")
		close(secondMayStart)
		<-ctx.Done()
		fmt.Println("1.4.0 stops, superseded:", errors.Is(context.Cause(ctx), election.ErrSuperseded))
		return nil
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err = election.New(config("balancer-2", "1.5.0", func(context.Context, election.Term) error {
		fmt.Println("1.5.0 leads")
		cancel()
		return nil
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() { ended <- first.Run(ctx) }()
	<-secondMayStart
	go func() { ended <- second.Run(ctx) }()
	fmt.Println(<-ended, <-ended)
	// Output:
	// 1.4.0 leads
	// 1.4.0 stops, superseded: true
	// 1.5.0 leads
	// <nil> <nil>
}
