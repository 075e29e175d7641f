// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// at returns a candidate with versions, made so many seconds after the first.
func at(id, emulation, binary string, created int) Peer {
	return Peer{Identity: id, EmulationVersion: emulation, BinaryVersion: binary, Created: time.Unix(int64(created), 0)}
}

func TestValidLeaseCandidateForOldestEmulationVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		peer Peer
		want bool
	}{
		"valid emulation and binary versions": {at("a", "0.1.0", "0.1.0", 0), true},
		"invalid emulation version":           {at("a", "invalidVersion", "0.1.0", 0), false},
		"invalid binary version":              {at("a", "0.1.0", "invalidVersion", 0), false},
		"none":                                {at("a", "", "", 0), false},
	} {
		if got := Eligible(OldestEmulationVersion(), tc.peer); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b      Peer
		incumbent string
		want      int
	}{
		"identical versions, a is older":     {at("a", "1.20.0", "1.21.0", 0), at("b", "1.20.0", "1.21.0", 1), "", -1},
		"identical versions, b is older":     {at("a", "1.20.0", "1.21.0", 1), at("b", "1.20.0", "1.21.0", 0), "", 1},
		"identical in all":                   {at("a", "1.20.0", "1.21.0", 0), at("b", "1.20.0", "1.21.0", 0), "", -1},
		"identical in all, b leads":          {at("a", "1.20.0", "1.21.0", 0), at("b", "1.20.0", "1.21.0", 1), "b", 1},
		"no versions at all":                 {at("a", "", "", 0), at("b", "", "", 1), "", -1},
		"a has a lower emulation version":    {at("a", "1.19.0", "1.21.0", 1), at("b", "1.20.0", "1.21.0", 0), "b", -1},
		"b has a lower emulation version":    {at("a", "1.20.0", "1.21.0", 0), at("b", "1.19.0", "1.21.0", 1), "a", 1},
		"a has a lower binary version":       {at("a", "1.20.0", "1.20.0", 1), at("b", "1.20.0", "1.21.0", 0), "b", -1},
		"b has a lower binary version":       {at("a", "1.20.0", "1.21.0", 0), at("b", "1.20.0", "1.20.0", 1), "a", 1},
		"lexographical order check":          {at("a", "1.9.0", "1.21.0", 1), at("b", "1.10.0", "1.21.0", 0), "", -1},
		"a candidate and itself":             {at("a", "1.9.0", "1.21.0", 1), at("a", "1.9.0", "1.21.0", 1), "a", 0},
		"b is not eligible, whatever it has": {at("a", "1.9.0", "1.21.0", 1), at("b", "", "x", 0), "b", -1},
	} {
		if got := Compare(OldestEmulationVersion(), tc.a, tc.b, tc.incumbent); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
		if got := Compare(OldestEmulationVersion(), tc.b, tc.a, tc.incumbent); got != -tc.want {
			t.Errorf("%s, the other way round: %d, want %d", name, got, -tc.want)
		}
	}
}

func TestPickBestStrategy(t *testing.T) {
	vote := func(_, binary, strategy string) spec.Ballot {
		return spec.Ballot{BinaryVersion: binary, Strategy: strategy}
	}
	for name, tc := range map[string]struct {
		ballots []spec.Ballot
		want    string
		agreed  bool
	}{
		"no candidates":            {nil, "", false},
		"single candidate":         {[]spec.Ballot{vote("a", "1.0.0", "x/1")}, "x/1", true},
		"same strategy":            {[]spec.Ballot{vote("a", "1.0.0", "x/1"), vote("b", "2.0.0", "x/1")}, "x/1", true},
		"highest version decides":  {[]spec.Ballot{vote("a", "1.9.0", "x/1"), vote("b", "1.10.0", "x/2")}, "x/2", true},
		"the others don't matter":  {[]spec.Ballot{vote("a", "1.0.0", "x/1"), vote("b", "1.0.0", "x/3"), vote("c", "2.0.0", "x/2")}, "x/2", true},
		"conflicting preferred":    {[]spec.Ballot{vote("a", "1.0.0", "x/2"), vote("b", "1.0.0", "x/1"), vote("c", "1.0.0", "x/2")}, "x/1", false},
		"invalid binary is lowest": {[]spec.Ballot{vote("a", "bad", "x/1"), vote("b", "0.1.0", "x/2")}, "x/2", true},
		"all without versions":     {[]spec.Ballot{vote("a", "", "x/1"), vote("b", "", "x/1")}, "x/1", true},
	} {
		for range 2 {
			if got, agreed := spec.ChosenStrategy(tc.ballots, func(string) bool { return false }); got != tc.want || agreed != tc.agreed {
				t.Errorf("%s: %q %v, want %q %v", name, got, agreed, tc.want, tc.agreed)
			}
			slices.Reverse(tc.ballots)
		}
	}
}

func TestGetVersions(t *testing.T) {
	for s, want := range map[string]bool{
		"1.37.0": true, "1.37.0-alpha.1": true, "1.37.0+build": true, "0.0.0": true,
		"": false, "v1.37.0": false, "1.37": false, "x": false, "1.37.0 ": false, " 1.37.0": false, "-1.0.0": false,
	} {
		if _, ok := spec.ParseVersion(s); ok != want {
			t.Errorf("%q: %v, want %v", s, ok, want)
		}
	}
}

func TestStrategies(t *testing.T) {
	zone := func(id, zone string, priority int32, binary string) Peer {
		return Peer{Identity: id, Attributes: map[string]string{"example.com/zone": zone}, Priority: priority, BinaryVersion: binary}
	}
	peers := []Peer{zone("a", "x", 0, "1.0.0"), zone("b", "y", 2, "1.2.0"), zone("c", "z", 2, "1.10.0"), zone("d", "", -1, "")}
	for _, tc := range []struct {
		strategy Strategy
		name     string
		want     []string
	}{
		{First(), "kubewright.dev/First", []string{"a", "b", "c", "d"}},
		{NewestVersion(), "kubewright.dev/NewestVersion", []string{"c", "b", "a", "d"}},
		{HighestPriority(nil), "kubewright.dev/HighestPriority.First", []string{"b", "c", "a", "d"}},
		{HighestPriority(NewestVersion()), "kubewright.dev/HighestPriority.NewestVersion", []string{"c", "b", "a", "d"}},
		{HighestPriority(OldestEmulationVersion()), "kubewright.dev/HighestPriority.OldestEmulationVersion", []string{"b", "c", "a", "d"}},
		{Prefer("example.com/zone", "z", "x"), Prefer("example.com/zone", "z", "x").Name(), []string{"c", "a", "b", "d"}},
		{StrategyFunc("example.com/mine", func(a, b Peer) int { return -First().Compare(a, b) }), "example.com/mine", []string{"a", "b", "c", "d"}},
	} {
		if got := tc.strategy.Name(); got != tc.name {
			t.Errorf("name %q, want %q", got, tc.name)
		}
		if problems := spec.CheckStrategyName(field.NewPath("Strategy"), tc.strategy.Name()); len(problems) > 0 {
			t.Errorf("%s: %v", tc.strategy.Name(), problems)
		}
		var got []string
		for _, p := range slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return Compare(tc.strategy, a, b, "") }) {
			got = append(got, p.Identity)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	if Prefer("k", "a", "b").Name() == Prefer("k", "ab").Name() || Prefer("k", "a").Name() == Prefer("k", "b").Name() {
		t.Error("strategies that differ have one name")
	}
	for _, bad := range []string{"", "mine", "example.com/", "/x", "a/b/c"} {
		if len(spec.CheckStrategyName(field.NewPath("Strategy"), bad)) == 0 {
			t.Errorf("the name %q was accepted", bad)
		}
	}
}

// reluctant never replaces a leader.
type reluctant struct{ Strategy }

func (reluctant) Preempts(Peer, Peer) bool { return false }

func TestPreempts(t *testing.T) {
	old, recent := at("old", "1.1.0", "1.1.0", 0), at("new", "1.2.0", "1.2.0", 1)
	invalid := at("invalid", "", "x", 0)
	for name, tc := range map[string]struct {
		strategy              Strategy
		challenger, incumbent Peer
		want                  bool
	}{
		"better":                      {OldestEmulationVersion(), old, recent, true},
		"worse":                       {OldestEmulationVersion(), recent, old, false},
		"equal, and older":            {First(), old, recent, false},
		"not eligible":                {OldestEmulationVersion(), invalid, recent, false},
		"the leader is not eligible":  {OldestEmulationVersion(), recent, invalid, true},
		"below a threshold":           {reluctant{OldestEmulationVersion()}, old, recent, false},
		"threshold of what follows":   {HighestPriority(reluctant{OldestEmulationVersion()}), old, recent, false},
		"priority, whatever follows":  {HighestPriority(reluctant{First()}), Peer{Identity: "a", Priority: 1}, Peer{Identity: "b"}, true},
		"eligibility of what follows": {HighestPriority(OldestEmulationVersion()), Peer{Identity: "a", Priority: 1}, recent, false},
	} {
		if got := Preempts(tc.strategy, tc.challenger, tc.incumbent); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
