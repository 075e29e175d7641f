// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"

	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// A quiet node keeps no context. That of a function that is under way lasts beyond its
// round, and ends when the node is removed, as do all later ones.
func TestTheContextOfFunctions(t *testing.T) {
	c, err := New(benchConfig())
	if err != nil {
		t.Fatal(err)
	}
	n := c.newNode("node-1")
	quiet, _ := n.beginRound(t.Context(), 0)
	if err := quiet.Err(); err != nil {
		t.Fatal(err)
	}
	if n.endRound(); quiet.Err() == nil || n.ctx != nil {
		t.Errorf("after a round: %v, %v", quiet.Err(), n.ctx)
	}
	busy, _ := n.beginRound(t.Context(), 0)
	n.apply(status.Reached{Index: 0})
	n.apply(status.GaveUp{Index: 0})
	n.endRound()
	if again, _ := n.beginRound(t.Context(), 0); busy.Err() != nil || again != busy {
		t.Errorf("of a setter that is under way: %v", busy.Err())
	}
	if n.end(); busy.Err() == nil {
		t.Error("of a node that was removed it goes on")
	}
	removed := c.newNode("node-2")
	removed.end()
	if ctx, _ := removed.beginRound(t.Context(), 0); ctx.Err() == nil {
		t.Error("a round of a node that was removed before has one that goes on")
	}
}
