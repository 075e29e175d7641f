// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"sync/atomic"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/lease"
)

// Metrics with the standard library alone, and a gate: a node whose health
// signal has gone silent does not renew its lease.
func ExampleHooks() {
	var (
		renewals expvar.Int
		failures expvar.Map
		nodes    expvar.Map // by phase
		silent   atomic.Bool
	)
	changed := make(chan lease.PhaseChanged, 10)
	controller, err := lease.New(lease.Config{
		Client:   fake.NewClientset().CoordinationV1(),
		NodeName: "node-1",
		Owner:    lease.NoOwner,
		Gate: func(context.Context, string) error {
			if silent.Load() {
				return errors.New("no sign of life from the runtime")
			}
			return nil
		},
		Hooks: lease.Hooks{
			Renewed: func(lease.Renewed) { renewals.Add(1) },
			Failed:  func(f lease.Failed) { failures.Add(f.Class, 1) },
			PhaseChanged: func(c lease.PhaseChanged) {
				if c.From != lease.PhasePending { // in which a node begins, without a call
					nodes.Add(c.From.String(), -1)
				}
				if c.To != lease.PhasePending && c.To != lease.PhaseStopped {
					nodes.Add(c.To.String(), 1)
				}
				changed <- c
			},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()

	c := <-changed
	fmt.Println(c.From, "->", c.To)
	silent.Store(true)
	controller.Trigger("node-1") // or wait for the next renewal
	c = <-changed
	fmt.Println(c.From, "->", c.To, "because of", c.Reason)
	fmt.Println("renewals:", renewals.Value(), "gate closed:", nodes.Get("GateClosed"))

	cancel()
	fmt.Println("stopped:", <-stopped)
	fmt.Println("held:", nodes.Get("Held"), "gate closed:", nodes.Get("GateClosed"))
	// Output:
	// Pending -> Held
	// Held -> GateClosed because of no sign of life from the runtime
	// renewals: 1 gate closed: 1
	// stopped: <nil>
	// held: 0 gate closed: 0
}
