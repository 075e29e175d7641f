// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// An agent that can change its configuration as it runs sets Apply. A payload
// that is not valid is rejected at the door, and one that turns out bad is
// rolled back by a verdict, both without a restart.
func ExampleConfig_apply() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	payloads := make(chan string, 1)
	var controller *configcheckpoint.Controller[Settings]
	controller, err = configcheckpoint.New(configcheckpoint.Config[Settings]{
		Dir:   filepath.Join(dir, "store"),
		Codec: codec(),
		Source: configcheckpoint.SourceFunc(func(ctx context.Context) iter.Seq2[configcheckpoint.Payload, error] {
			return func(yield func(configcheckpoint.Payload, error) bool) {
				for {
					select {
					case <-ctx.Done():
						return
					case text := <-payloads:
						if !yield(configcheckpoint.Payload{Data: []byte(text), Name: "a channel"}, nil) {
							return
						}
					}
				}
			}
		}),
		Apply: func(_ context.Context, active configcheckpoint.Active[Settings]) error {
			fmt.Printf("  applied %s: %d s\n", active.Role, active.Config.PollSeconds)
			return nil
		},
		Hooks: configcheckpoint.Hooks{StatusChanged: func(s configcheckpoint.Status) {
			fmt.Printf("%t: %s\n", s.OK, s.Reason)
			switch s.Reason {
			case configcheckpoint.ReasonDefault:
				payloads <- "pollSeconds: 0"
			case configcheckpoint.ReasonValidationFailed:
				payloads <- "pollSeconds: 10"
			case configcheckpoint.ReasonTrial:
				if err := controller.Verdict(errors.New("the server refuses so many requests")); err != nil {
					fmt.Println(err)
				}
			case configcheckpoint.ReasonUnhealthy:
				if s.Active.Digest.IsZero() { // it has been rolled back
					cancel()
				}
			}
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := controller.Boot(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("Run:", controller.Run(ctx))
	fmt.Println(controller.Status().Message)
	fmt.Println("Close:", controller.Close(nil))
	// Output:
	// true: Default
	// false: ValidationFailed
	//   applied Assigned: 10 s
	// true: Trial
	//   applied Default: 60 s
	// false: Unhealthy
	// Run: <nil>
	// a channel (sha256:8ff314bdd80a) was rejected: the server refuses so many requests; running the built-in default
	// Close: <nil>
}
