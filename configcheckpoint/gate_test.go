// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestHashGate(t *testing.T) {
	const nodes = 10000
	share := 0
	ask := func(node, text string) time.Duration {
		wait, err := HashGate(node, func() int { return share })(t.Context(), Payload{Data: []byte(text)})
		if err != nil || wait < 0 || wait != 0 && (wait < 30*time.Second || wait > 90*time.Second) {
			t.Fatal(wait, err)
		}
		return wait
	}
	var before []int
	for _, share = range []int{-1, 0, 10, 50, 100, 200} {
		var admitted []int
		for n := range nodes {
			if ask(fmt.Sprint("node-", n), "A") == 0 {
				admitted = append(admitted, n)
			}
		}
		want := nodes * min(max(share, 0), 100) / 100
		if diff := len(admitted) - want; diff < -nodes/50 || diff > nodes/50 {
			t.Errorf("%d percent let in %d of %d nodes", share, len(admitted), nodes)
		}
		for _, n := range before {
			if !slices.Contains(admitted, n) {
				t.Fatalf("%d percent no longer let in node %d", share, n)
			}
		}
		before = admitted
	}
	share = 50
	both := 0
	for n := range nodes {
		if ask(fmt.Sprint("node-", n), "A") == 0 && ask(fmt.Sprint("node-", n), "B") == 0 {
			both++
		}
	}
	if both < nodes/5 || both > nodes*3/10 {
		t.Errorf("%d of %d nodes are first for two contents, want about a quarter", both, nodes)
	}
}
