// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A Strategy says which of two candidates is the better leader. It is a pure
// function of them, the same in all replicas, and safe for any number of
// goroutines. Where it has no preference the package breaks the tie: who leads
// stays; else the one that was there first; else the identity that sorts first.
// So the order is total and every replica comes to the same one.
//
// A Strategy may also be a [Preempter] and an [EligibilityChecker].
type Strategy interface {
	// Name is OldestEmulationVersion or a qualified name, for example
	// "example.com/least-loaded": the API allows no others. Candidates tell
	// each other the name of theirs; where they differ that of the highest
	// BinaryVersion holds, so that an upgrade can bring a new one.
	Name() string
	// Compare returns a negative number where a is the better leader, a
	// positive one where b is, and zero where it makes no difference.
	Compare(a, b Peer) int
}

// Preempter is implemented by a [Strategy] that wants to be sure before a
// leader is replaced, for example by a threshold where the load of candidates
// is compared. Without it every candidate that compares better replaces the
// leader.
type Preempter interface {
	// Preempts reports whether challenger, which compares better, is to take
	// the place of incumbent, who leads.
	Preempts(challenger, incumbent Peer) bool
}

// EligibilityChecker is implemented by a [Strategy] that does not want some
// candidates at all. One that is not eligible is chosen by nobody. It still
// leads where there is no other, rather than nobody, unless LeaseCandidate
// objects decide.
type EligibilityChecker interface {
	// Eligible reports whether a candidate may be chosen.
	Eligible(Peer) bool
}

// StrategyFunc returns a Strategy for a name and a comparison.
func StrategyFunc(name string, compare func(a, b Peer) int) Strategy {
	return strategyFunc{name: name, compare: compare}
}

type strategyFunc struct {
	name    string
	compare func(a, b Peer) int
}

func (s strategyFunc) Name() string          { return s.name }
func (s strategyFunc) Compare(a, b Peer) int { return s.compare(a, b) }

// The names of strategies that are not the API's have this domain.
const domain = "kubewright.dev"

// First prefers nobody: who leads goes on leading. It is the default of
// [Config.Strategy].
func First() Strategy {
	return StrategyFunc(domain+"/First", func(Peer, Peer) int { return 0 })
}

// OldestEmulationVersion is the strategy of the API server (KEP-4355): the
// lowest EmulationVersion leads, then the lowest BinaryVersion. While a control
// plane is upgraded the oldest leads, because the new ones know what it does
// and not the other way round. A candidate with a version that is missing or
// can't be read is not eligible.
func OldestEmulationVersion() Strategy { return oldestEmulationVersion{} }

type oldestEmulationVersion struct{}

func (oldestEmulationVersion) Name() string { return string(coordinationv1.OldestEmulationVersion) }

func (oldestEmulationVersion) Compare(a, b Peer) int {
	return cmp.Or(compareVersions(a.emulated(), b.emulated()), compareVersions(a.BinaryVersion, b.BinaryVersion))
}

func (oldestEmulationVersion) Eligible(p Peer) bool {
	_, emulation := parseVersion(p.emulated())
	_, binary := parseVersion(p.BinaryVersion)
	return emulation && binary
}

// NewestVersion prefers the highest BinaryVersion, then the highest
// EmulationVersion. A version that can't be read is the lowest.
func NewestVersion() Strategy {
	return StrategyFunc(domain+"/NewestVersion", func(a, b Peer) int {
		return cmp.Or(compareVersions(b.BinaryVersion, a.BinaryVersion), compareVersions(b.emulated(), a.emulated()))
	})
}

// HighestPriority prefers the highest [Peer.Priority], then what the other
// strategy prefers (nil: nobody). Its name contains that of the other.
func HighestPriority(then Strategy) Strategy {
	if then == nil {
		then = First()
	}
	return follows{name: "HighestPriority", then: then, compare: func(a, b Peer) int { return cmp.Compare(b.Priority, a.Priority) }}
}

// follows is a comparison that leaves ties to another strategy.
type follows struct {
	name    string
	compare func(a, b Peer) int
	then    Strategy
}

func (s follows) Name() string {
	_, after, ok := strings.Cut(s.then.Name(), "/")
	if !ok {
		after = s.then.Name()
	}
	return fmt.Sprintf("%s/%s.%s", domain, s.name, after)
}

func (s follows) Compare(a, b Peer) int { return cmp.Or(s.compare(a, b), s.then.Compare(a, b)) }

func (s follows) Eligible(p Peer) bool { return eligible(s.then, p) }

func (s follows) Preempts(challenger, incumbent Peer) bool {
	return s.compare(challenger, incumbent) < 0 || preempts(s.then, challenger, incumbent)
}

// Prefer prefers candidates by one of their [Peer.Attributes]: those that have
// the first value, then those that have the second, and so on; the others come
// last. Prefer("zone", "a", "b") keeps the leader in zone a while it can. Its
// name contains the key and a digest of key and values, so that candidates
// with other values are known to disagree.
func Prefer(key string, values ...string) Strategy {
	values = slices.Clone(values)
	digest := fnv.New32a()
	for _, part := range append([]string{key}, values...) {
		fmt.Fprintf(digest, "%d:%s", len(part), part)
	}
	rank := func(p Peer) int {
		value, ok := p.Attributes[key]
		if i := slices.Index(values, value); ok && i >= 0 {
			return i
		}
		return len(values)
	}
	last := key[strings.LastIndexByte(key, '/')+1:]
	return StrategyFunc(fmt.Sprintf("%s/Prefer-%08x.%.32s", domain, digest.Sum32(), last), func(a, b Peer) int {
		return cmp.Compare(rank(a), rank(b))
	})
}

// checkStrategyName returns what is wrong with the name of a strategy, by the
// rules that the API has for Lease and LeaseCandidate.
func checkStrategyName(name string) []string {
	if name == string(coordinationv1.OldestEmulationVersion) {
		return nil
	}
	if !strings.Contains(name, "/") {
		return []string{fmt.Sprintf("must be %s or a name with a domain, for example example.com/least-loaded", coordinationv1.OldestEmulationVersion)}
	}
	return validation.IsQualifiedName(name)
}
