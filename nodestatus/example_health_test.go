// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/nodestatus"
)

// A node that says why it is not ready, and that it is again. Trigger makes a
// change known at once; without it the next round finds out.
func ExampleHealthCheck() {
	var broken atomic.Bool
	changed := make(chan nodestatus.ConditionChanged)

	controller, err := nodestatus.New(nodestatus.Config{
		Client:   fake.NewClientset().CoreV1(),
		NodeName: "node-1",
		HealthChecks: []nodestatus.HealthCheck{func(context.Context, string) error {
			if broken.Load() {
				return &nodestatus.NotReadyError{Reason: "RuntimeDown", Message: "no answer on the runtime's socket"}
			}
			return nil
		}},
		Hooks: nodestatus.Hooks{ConditionChanged: func(c nodestatus.ConditionChanged) {
			if c.Condition.Type == "Ready" {
				changed <- c
			}
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan error)
	go func() { stopped <- controller.Run(ctx) }()

	fmt.Println("Ready:", (<-changed).Condition.Status)
	for _, state := range []bool{true, false} {
		broken.Store(state)
		controller.Trigger("node-1")
		ready := (<-changed).Condition
		fmt.Printf("Ready: %s, %s: %s\n", ready.Status, ready.Reason, ready.Message)
	}

	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// Ready: True
	// Ready: False, RuntimeDown: no answer on the runtime's socket
	// Ready: True, NodeReady: all health checks passed
	// stopped: <nil>
}
