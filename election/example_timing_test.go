// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"fmt"
	"time"

	"github.com/kubewright/kubewright/election"
)

// Three numbers of a Timing determine which failures cost no term.
func ExampleTiming() {
	for _, timing := range []election.Timing{{}, election.LongOutageTiming()} {
		fmt.Printf("outage %v, failover %v, clocks %.0f %%\n", timing.MaxOutage(), timing.CrashFailover(), 100*timing.RateTolerance())
	}
	unsafe := election.Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 14 * time.Second, RenewInterval: 2 * time.Second}
	fmt.Println(unsafe.Validate())
	// Output:
	// outage 5.7s, failover 17.5s, clocks 7 %
	// outage 1m12.5s, failover 2m2.5s, clocks 13 %
	// election: invalid config: Timing.RenewDeadline: Invalid value: "14s": RenewDeadline + Drain < LeaseDuration must hold, but 14s + 3s >= 15s: there would be two leaders; less than 1s is left for Drain
}
