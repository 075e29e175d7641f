// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// A replica that leads, does its work under the protection of the lease, and
// gives the lease away when it ends.
func Example() {
	clientset := apitest.New(apitest.Options{}).Client(apitest.User{}) // kubernetes.NewForConfig in a program
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	candidate, err := election.New(election.Config{
		Client: clientset.CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "default", Name: "balancer"},
		Self:   election.Peer{Identity: "balancer-7d9f"},
		Lead: func(ctx context.Context, term election.Term) error {
			fmt.Println("leading:", term.Valid(), "with a token:", term.Token() > 0)
			cancel() // the program ends, for example because of SIGTERM
			<-ctx.Done()
			fmt.Println("stopped working:", context.Cause(ctx))
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ended:", candidate.Run(ctx))
	leader, ok := candidate.Leader()
	fmt.Printf("leader: %q %v\n", leader, ok)
	// Output:
	// leading: true with a token: true
	// stopped working: context canceled
	// ended: <nil>
	// leader: "" false
}
