// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"time"
)

// A Peer is election.Peer.
type Peer struct {
	Identity         string            `json:"id,omitempty"`        // election.Peer.Identity
	BinaryVersion    string            `json:"binary,omitempty"`    // election.Peer.BinaryVersion
	EmulationVersion string            `json:"emulation,omitempty"` // election.Peer.EmulationVersion
	Priority         int32             `json:"priority,omitempty"`  // election.Peer.Priority
	Attributes       map[string]string `json:"attrs,omitempty"`     // election.Peer.Attributes
	LastResort       bool              `json:"-"`                   // election.Peer.LastResort
	Created          time.Time         `json:"created,omitzero"`    // election.Peer.Created
}

// Emulated returns EmulationVersion with its default.
func (p Peer) Emulated() string { return cmp.Or(p.EmulationVersion, p.BinaryVersion) }

// A Strategy is election.Strategy with the methods of the optional interfaces.
type Strategy interface {
	// Name is election.Strategy.Name.
	Name() string
	// Compare is election.Strategy.Compare.
	Compare(a, b Peer) int
	// Eligible is election.EligibilityChecker.Eligible; true without it.
	Eligible(p Peer) bool
	// Preempts is election.Preempter.Preempts; true without it.
	Preempts(challenger, incumbent Peer) bool
}

// Compare is the total order of candidates under a strategy: negative if a is the
// better leader. incumbent is the identity of the leader, or "".
func Compare(s Strategy, a, b Peer, incumbent string) int {
	return cmp.Or(
		CompareUntied(s, a, b),
		trueFirst(incumbent != "" && a.Identity == incumbent, incumbent != "" && b.Identity == incumbent),
		a.Created.Compare(b.Created),
		cmp.Compare(a.Identity, b.Identity),
	)
}

// CompareUntied is Compare without its tie-breaks.
func CompareUntied(s Strategy, a, b Peer) int {
	return cmp.Or(trueFirst(s.Eligible(a), s.Eligible(b)), s.Compare(a, b))
}

// Preempts reports whether challenger must replace incumbent, the leader. A tie
// never replaces a leader.
func Preempts(s Strategy, challenger, incumbent Peer) bool {
	if !s.Eligible(challenger) || s.Eligible(incumbent) && s.Compare(challenger, incumbent) >= 0 {
		return false
	}
	return s.Preempts(challenger, incumbent)
}
