// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// at returns a candidate with versions, made so many seconds after the first.
func at(id, emulation, binary string, created int) spec.Peer {
	return spec.Peer{Identity: id, EmulationVersion: emulation, BinaryVersion: binary, Created: time.Unix(int64(created), 0)}
}

// oldest is the strategy of the API server.
type oldest struct{}

func (oldest) Name() string { return "OldestEmulationVersion" }
func (oldest) Compare(a, b spec.Peer) int {
	return cmp.Or(spec.CompareVersions(a.Emulated(), b.Emulated()), spec.CompareVersions(a.BinaryVersion, b.BinaryVersion))
}
func (oldest) Eligible(p spec.Peer) bool {
	_, emulation := spec.ParseVersion(p.Emulated())
	_, binary := spec.ParseVersion(p.BinaryVersion)
	return emulation && binary
}
func (oldest) Preempts(spec.Peer, spec.Peer) bool { return true }

// The scenarios of the API server's tests have their names.

func TestPickBestLeaderOldestEmulationVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		peers []spec.Peer
		want  string
	}{
		"empty":                                {nil, ""},
		"single candidate":                     {[]spec.Peer{at("a", "0.1.0", "0.1.0", 0)}, "a"},
		"different emulation":                  {[]spec.Peer{at("a", "0.2.0", "0.2.0", 0), at("b", "0.1.0", "0.2.0", 1)}, "b"},
		"same emulation, different binary":     {[]spec.Peer{at("a", "0.1.0", "0.2.0", 0), at("b", "0.1.0", "0.1.0", 1)}, "b"},
		"same versions, different creation":    {[]spec.Peer{at("a", "0.1.0", "0.1.0", 1), at("b", "0.1.0", "0.1.0", 0)}, "b"},
		"the same in all":                      {[]spec.Peer{at("b", "0.1.0", "0.1.0", 0), at("a", "0.1.0", "0.1.0", 0)}, "a"},
		"who is not eligible is not chosen":    {[]spec.Peer{at("a", "x", "0.1.0", 0), at("b", "0.9.0", "0.9.0", 1)}, "b"},
		"nobody is eligible":                   {[]spec.Peer{at("a", "x", "0.1.0", 0)}, ""},
		"binary version stands for emulation":  {[]spec.Peer{at("a", "", "0.2.0", 0), at("b", "0.1.0", "0.3.0", 1)}, "b"},
		"a pre-release is before its release":  {[]spec.Peer{at("a", "1.33.0", "1.33.0", 0), at("b", "1.33.0-alpha.1", "1.33.0", 1)}, "b"},
		"numbers are compared as numbers":      {[]spec.Peer{at("a", "1.10.0", "1.10.0", 0), at("b", "1.9.0", "1.10.0", 1)}, "b"},
		"numbers with leading v are not valid": {[]spec.Peer{at("a", "v1.1.0", "v1.1.0", 0), at("b", "1.9.0", "1.10.0", 1)}, "b"},
	} {
		for range 2 {
			b := newBench(t, func(s *Rules) { s.Strategy = oldest{} })
			b.lead()
			b.self.LastResort = true // any eligible candidate is better
			for _, p := range tc.peers {
				b.reg.records[p.Identity] = record{Peer: p, Strategy: b.Strategy.Name()}
			}
			got := ""
			if b.reg.weigh(time.Hour); b.reg.offer != nil {
				got = b.reg.offer.to
			}
			if got != tc.want {
				t.Errorf("%s: %q, want %q", name, got, tc.want)
			}
			slices.Reverse(tc.peers) // the order of a list makes no difference
		}
	}
}
