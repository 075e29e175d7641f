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
	n.beginRound(0)
	quiet := n.life(t.Context())
	if err := quiet.Err(); err != nil {
		t.Fatal(err)
	}
	if n.endRound(); quiet.Err() == nil || n.ctx != nil {
		t.Errorf("after a round: %v, %v", quiet.Err(), n.ctx)
	}
	n.beginRound(0)
	busy := n.life(t.Context())
	n.apply(status.Reached{Index: 0})
	n.apply(status.GaveUp{Index: 0})
	if n.endRound(); busy.Err() != nil || n.life(t.Context()) != busy {
		t.Errorf("of a setter that is under way: %v", busy.Err())
	}
	if n.end(); busy.Err() == nil {
		t.Error("of a node that was removed it goes on")
	}
	removed := c.newNode("node-2")
	removed.end()
	if removed.life(t.Context()).Err() == nil {
		t.Error("a round of a node that was removed before has one that goes on")
	}
}
