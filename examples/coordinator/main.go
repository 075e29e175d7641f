// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Coordinator elects leaders for components that have LeaseCandidates. It runs
// package coordinator's Controller as the work of a Candidate, so that one of
// several instances is active at a time.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/examples/internal/kube"
)

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	hostname, _ := os.Hostname() // an empty identity is rejected later, by name
	flags := kube.NewFlags("coordinator")
	identity := flags.String("identity", hostname, "unique `name` of this instance")
	displace := flags.Bool("displace", false, "hold the Lease of the API servers' controllers, so that none of them elects; otherwise the strategies must differ")
	duration := flags.Duration("lease-duration", election.DefaultLeaseDuration, "`time` after which another instance takes over from a dead one; whole seconds")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	renewals, err := kube.Heartbeats(cfg)
	if err != nil {
		return err
	}
	client, err := kube.Unlimited(cfg)
	if err != nil {
		return err
	}

	lease := types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "kubewright-coordinator"}
	if *displace {
		lease.Name = coordinator.BuiltInLease
	}
	candidate, err := election.New(election.Config{
		Client: renewals.CoordinationV1(),
		Lease:  lease,
		Self:   election.Peer{Identity: *identity},
		Timing: election.Timing{LeaseDuration: *duration},
		Lead: func(ctx context.Context, _ election.Term) error {
			fmt.Fprintf(stdout, "%s coordinates\n", *identity)
			// Each term has its own Controller, because a Controller runs once.
			controller, err := coordinator.New(coordinator.Config{
				Client: client.CoordinationV1(), Candidates: client.CoordinationV1beta1(),
				Hooks: hooks(stdout),
			})
			if err != nil {
				return err
			}
			defer fmt.Fprintf(stdout, "%s has stopped\n", *identity)
			return controller.Run(ctx)
		},
	})
	if err != nil {
		return err
	}
	return candidate.Run(ctx)
}

// hooks returns hooks that print the actions of the Controller.
func hooks(stdout io.Writer) coordinator.Hooks {
	return coordinator.Hooks{
		Elected: func(e coordinator.Elected) {
			fmt.Fprintf(stdout, "%v: elected %s (%s) after %q\n", e.Lease, e.Holder, e.Strategy, e.Previous)
		},
		Preferred: func(p coordinator.Preferred) {
			fmt.Fprintf(stdout, "%v: %s must give way to %s\n", p.Lease, p.Holder, p.PreferredHolder)
		},
		Silent: func(s coordinator.Silent) {
			fmt.Fprintf(stdout, "%v: %s does not answer\n", s.Lease, s.Candidate)
		},
	}
}
