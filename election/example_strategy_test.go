// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/kubewright/kubewright/election"
)

// leastLoaded prefers the candidate with the lowest load, and replaces a leader
// only if it makes a difference.
type leastLoaded struct{}

func (leastLoaded) Name() string { return "example.com/least-loaded" }

func (leastLoaded) Compare(a, b election.Peer) int { return cmp.Compare(load(a), load(b)) }

func (leastLoaded) Preempts(challenger, incumbent election.Peer) bool {
	return load(incumbent)-load(challenger) >= 20
}

func load(p election.Peer) int {
	percent, err := strconv.Atoi(p.Attributes["load"])
	if err != nil {
		return 100
	}
	return percent
}

// A custom strategy, which candidates feed by [Candidate.Update], with a
// threshold below which nothing changes.
func ExamplePreempter() {
	var strategy election.Strategy = leastLoaded{}
	busy := election.Peer{Identity: "a", Attributes: map[string]string{"load": "70"}}
	idle := election.Peer{Identity: "b", Attributes: map[string]string{"load": "55"}}
	fmt.Println("b is better:", strategy.Compare(idle, busy) < 0)
	fmt.Println("b replaces a:", strategy.(election.Preempter).Preempts(idle, busy))
	// Output:
	// b is better: true
	// b replaces a: false
}
