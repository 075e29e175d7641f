// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"cmp"
)

// compare is the total order of candidates under a strategy: negative where a
// is the better leader. incumbent is the identity of who leads, or "".
func compare(s Strategy, a, b Peer, incumbent string) int {
	return cmp.Or(
		prefer(s, a, b),
		better(incumbent != "" && a.Identity == incumbent, incumbent != "" && b.Identity == incumbent),
		a.Created.Compare(b.Created),
		cmp.Compare(a.Identity, b.Identity),
	)
}

// prefer is compare without its ways to break ties.
func prefer(s Strategy, a, b Peer) int {
	return cmp.Or(better(eligible(s, a), eligible(s, b)), s.Compare(a, b))
}

// better orders what is true before what is not.
func better(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// best returns the first of the peers that are eligible.
func best(s Strategy, peers []Peer, incumbent string) (Peer, bool) {
	var found Peer
	ok := false
	for _, p := range peers {
		if eligible(s, p) && (!ok || compare(s, p, found, incumbent) < 0) {
			found, ok = p, true
		}
	}
	return found, ok
}

// rank returns how many of the peers come before p.
func rank(s Strategy, p Peer, peers []Peer, incumbent string) int {
	n := 0
	for _, q := range peers {
		if q.Identity != p.Identity && compare(s, q, p, incumbent) < 0 {
			n++
		}
	}
	return n
}

// eligible asks the strategy whether p may be chosen.
func eligible(s Strategy, p Peer) bool {
	checker, ok := s.(EligibilityChecker)
	return !ok || checker.Eligible(p)
}

// preempts reports whether challenger is to take the place of incumbent, who
// leads. A tie never does.
func preempts(s Strategy, challenger, incumbent Peer) bool {
	if !eligible(s, challenger) || eligible(s, incumbent) && s.Compare(challenger, incumbent) >= 0 {
		return false
	}
	p, ok := s.(Preempter)
	return !ok || p.Preempts(challenger, incumbent)
}

// A ballot is a candidate with the name of the strategy that it asks for.
type ballot struct {
	Peer
	strategy string
}

// chosenStrategy returns the name of the strategy by which to choose among
// candidates: that of the highest BinaryVersion, as in the API server. Where
// those of the highest BinaryVersion differ it is the one that sorts first, so
// that somebody can be elected, and agreed is false: nobody should lose the
// lease over it. It is "" where there are no ballots.
func chosenStrategy(ballots []ballot) (name string, agreed bool) {
	highest := ""
	for _, b := range ballots {
		c := compareVersions(b.BinaryVersion, highest)
		switch {
		case b.strategy == "": // says nothing
		case name == "" || c > 0:
			highest, name, agreed = b.BinaryVersion, b.strategy, true
		case c == 0 && b.strategy != name:
			name, agreed = min(name, b.strategy), false
		}
	}
	return name, agreed
}
