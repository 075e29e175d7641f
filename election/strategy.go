// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/callback"
)

// Peer describes a candidate to the others.
type Peer struct {
	// Identity names the candidate. In [Config.Self] it is the name of the replica,
	// for example of its Pod or Node. The identity on the Lease has a random suffix
	// unless [Config.ExclusiveIdentity] is set. See [Candidate.Identity].
	Identity string `json:"id,omitempty"`
	// BinaryVersion is the version of the program, a semantic version without
	// "v", for example "1.37.1". It may be empty, except in a LeaseCandidate.
	BinaryVersion string `json:"binary,omitempty"`
	// EmulationVersion is the version whose behavior the program emulates
	// (KEP-4330). It has the same form and is at most BinaryVersion. Default:
	// BinaryVersion.
	EmulationVersion string `json:"emulation,omitempty"`
	// Priority is for [HighestPriority]; the higher the better. Default: 0.
	Priority int32 `json:"priority,omitempty"`
	// Attributes are for strategies, for example a zone or a load. The Peer and the
	// name of the strategy may have 800 bytes as JSON, because the Lease stores those of
	// up to sixteen candidates.
	Attributes map[string]string `json:"attrs,omitempty"`
	// LastResort reports that the candidate should lead only if no other candidate
	// does, because it is not ready or is overloaded. Its record is withdrawn.
	LastResort bool `json:"-"`
	// Created is the time of the first record of the candidate, by the clock of its
	// machine or of the API server. It only breaks ties. It is ignored in
	// [Config.Self].
	// A Strategy should not rank by it: in a LeaseCandidate it is a time of the API server, in whole
	// seconds, and in a record on the Lease one of the candidate.
	Created time.Time `json:"created,omitzero"`
}

// clone returns a copy that shares nothing.
func (p Peer) clone() Peer {
	p.Attributes = maps.Clone(p.Attributes)
	return p
}

// emulated returns EmulationVersion with its default.
func (p Peer) emulated() string { return spec.Peer(p).Emulated() }

// A Strategy decides which of two candidates is the better leader. It must be a
// pure function of the two, the same in all replicas, and safe for concurrent use.
// If it has no preference, the package breaks the tie: the leader stays, then the
// older candidate comes first, then the identity that sorts first. The order is
// therefore total, and the same in every replica. After a panic, which is reported, it
// has no preference between two candidates, rejects a candidate, or keeps the leader.
//
// A Strategy may also be a [Preempter] and an [EligibilityChecker]. A coordinator knows
// OldestEmulationVersion, First and NewestVersion. Every other one is needed in the
// field Strategies of its Config too, or the Lease is ignored.
type Strategy interface {
	// Name is OldestEmulationVersion or a qualified name, for example
	// "example.com/least-loaded": the API allows no others. Candidates publish the
	// name. If names differ, the one of the highest BinaryVersion holds, so an
	// upgrade can introduce a new strategy.
	Name() string
	// Compare returns a negative number if a is the better leader, a positive
	// number if b is, and zero if the strategy has no preference.
	Compare(a, b Peer) int
}

// Preempter is implemented by a [Strategy] that does not replace the leader for
// every better candidate, for example because loads must differ by a threshold.
// Without it, every candidate that compares better replaces the leader.
type Preempter interface {
	// Preempts reports whether challenger, which compares better, must replace
	// incumbent, which leads.
	Preempts(challenger, incumbent Peer) bool
}

// EligibilityChecker is implemented by a [Strategy] that rejects some candidates.
// [New] and [Candidate.Update] refuse a Peer that the candidate's own strategy rejects.
// A strategy never prefers a candidate that it rejects to one that it accepts. With
// [OnLease] a rejected candidate still leads if no other one claims the lease. A
// coordinator never elects it.
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

// First has no preference, so the leader is never replaced. It is the default of
// [Config.Strategy] with the registry [OnLease].
func First() Strategy {
	return StrategyFunc(spec.Domain+"/First", func(Peer, Peer) int { return 0 })
}

// OldestEmulationVersion is the strategy of the API server (KEP-4355). It prefers
// the lowest EmulationVersion, then the lowest BinaryVersion. During the upgrade of
// a control plane the oldest component leads, because newer ones understand its
// behavior and it does not understand theirs. A candidate with a missing or invalid
// version is not eligible.
func OldestEmulationVersion() Strategy { return oldestEmulationVersion{} }

type oldestEmulationVersion struct{}

func (oldestEmulationVersion) Name() string { return string(coordinationv1.OldestEmulationVersion) }

func (oldestEmulationVersion) Compare(a, b Peer) int {
	return cmp.Or(spec.CompareVersions(a.emulated(), b.emulated()), spec.CompareVersions(a.BinaryVersion, b.BinaryVersion))
}

func (oldestEmulationVersion) Eligible(p Peer) bool {
	_, emulation := spec.ParseVersion(p.emulated())
	_, binary := spec.ParseVersion(p.BinaryVersion)
	return emulation && binary
}

// NewestVersion prefers the highest BinaryVersion, then the highest
// EmulationVersion. A candidate with a missing or invalid BinaryVersion is not
// eligible.
func NewestVersion() Strategy { return newestVersion{} }

type newestVersion struct{}

func (newestVersion) Name() string { return spec.Domain + "/NewestVersion" }

func (newestVersion) Compare(a, b Peer) int {
	return cmp.Or(spec.CompareVersions(b.BinaryVersion, a.BinaryVersion), spec.CompareVersions(b.emulated(), a.emulated()))
}

func (newestVersion) Eligible(p Peer) bool {
	_, ok := spec.ParseVersion(p.BinaryVersion)
	return ok
}

// HighestPriority prefers the highest [Peer.Priority]. Ties are left to the
// strategy then; nil is [First]. The name contains the name of then.
func HighestPriority(then Strategy) Strategy {
	if then == nil {
		then = First()
	}
	return highestPriority{then}
}

// highestPriority leaves ties to another strategy.
type highestPriority struct{ then Strategy }

func (s highestPriority) Name() string {
	name := s.then.Name()
	return spec.Domain + "/HighestPriority." + name[strings.IndexByte(name, '/')+1:]
}

func (s highestPriority) Compare(a, b Peer) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), s.then.Compare(a, b))
}

func (s highestPriority) Eligible(p Peer) bool { return Eligible(s.then, p) }

func (s highestPriority) Preempts(challenger, incumbent Peer) bool {
	return challenger.Priority > incumbent.Priority || Preempts(s.then, challenger, incumbent)
}

// Prefer prefers candidates by one of their [Peer.Attributes]: candidates with the
// first value, then candidates with the second, and so on; all others come last.
// Prefer("zone", "a", "b") keeps the leader in zone a while a candidate runs there.
// Ties follow the rule of [Strategy]. HighestPriority(Prefer("zone", "a")) lets the priority
// count first.
// The name contains the key and a digest of key and values, which shows if
// candidates disagree about the values.
func Prefer(key string, values ...string) Strategy {
	values = slices.Clone(values)
	digest := fnv.New32a()
	for _, part := range append([]string{key}, values...) {
		fmt.Fprintf(digest, "%d:%s", len(part), part)
	}
	slices.Reverse(values) // all other values have the index -1
	place := func(p Peer) int { return slices.Index(values, p.Attributes[key]) }
	last := key[strings.LastIndexByte(key, '/')+1:]
	return StrategyFunc(fmt.Sprintf("%s/Prefer-%08x.%.32s", spec.Domain, digest.Sum32(), last), func(a, b Peer) int {
		return cmp.Compare(place(b), place(a))
	})
}

// ranking is a Strategy as decisions need it. Its panics are reported if report is set;
// the result is then the zero value.
type ranking struct {
	Strategy
	name   string
	report func(error)
}

// Name returns the name that the strategy had when the Candidate was made.
func (s ranking) Name() string { return s.name }

func (s ranking) Compare(a, b spec.Peer) int {
	return ask(s, "Strategy.Compare", func() int { return s.Strategy.Compare(Peer(a), Peer(b)) })
}

func (s ranking) Eligible(p spec.Peer) bool {
	return ask(s, "Strategy.Eligible", func() bool { return Eligible(s.Strategy, Peer(p)) })
}

func (s ranking) Preempts(challenger, incumbent spec.Peer) bool {
	p, ok := s.Strategy.(Preempter)
	return !ok || ask(s, "Strategy.Preempts", func() bool { return p.Preempts(Peer(challenger), Peer(incumbent)) })
}

// ask calls a method of the strategy.
func ask[T any](s ranking, name string, method func() T) T {
	if s.report == nil {
		return method()
	}
	answer, err := callback.Get(name, func() (T, error) { return method(), nil })
	if err != nil {
		s.report(err)
	}
	return answer
}

// Compare is the total order of candidates under a strategy: negative if a is the
// better leader. incumbent is the identity of the leader, or "".
func Compare(s Strategy, a, b Peer, incumbent string) int {
	return spec.Compare(ranking{Strategy: s}, spec.Peer(a), spec.Peer(b), incumbent)
}

// Eligible reports whether p may be chosen under a strategy.
func Eligible(s Strategy, p Peer) bool {
	checker, ok := s.(EligibilityChecker)
	return !ok || checker.Eligible(p)
}

// Preempts reports whether challenger must replace incumbent, the leader. A tie
// never replaces a leader.
func Preempts(s Strategy, challenger, incumbent Peer) bool {
	return spec.Preempts(ranking{Strategy: s}, spec.Peer(challenger), spec.Peer(incumbent))
}
