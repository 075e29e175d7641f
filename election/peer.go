// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// Peer is one candidate as the others see it: what it says about itself.
type Peer struct {
	// Identity names the candidate. In [Config.Self] it is what the replica is
	// called, for example the name of its Pod or Node; what is written to the
	// Lease has a random suffix, unless [Config.ExclusiveIdentity] is set. See
	// [Candidate.Identity].
	Identity string
	// BinaryVersion is the version of the program, a semantic version without
	// "v", for example "1.37.1". Empty where versions don't matter; a
	// LeaseCandidate needs one.
	BinaryVersion string
	// EmulationVersion is the version that the program behaves like (KEP-4330):
	// at most BinaryVersion, and of the same form. Empty means BinaryVersion.
	EmulationVersion string
	// Priority is for [HighestPriority]; the higher the better. Default: 0.
	Priority int32
	// Attributes are for strategies: a zone, a load. At most eight, of at most
	// 256 bytes all together, as those of all candidates lie on the Lease.
	Attributes map[string]string
	// LastResort says that the candidate should lead only where nobody else
	// does: it is not ready, or overloaded. Its record is withdrawn.
	LastResort bool
	// Created is when the candidate first made itself known, by the clock of
	// its machine or of the API server. It breaks ties and nothing else.
	// Ignored in [Config.Self].
	Created time.Time
}

// clone returns a copy that shares nothing.
func (p Peer) clone() Peer {
	p.Attributes = maps.Clone(p.Attributes)
	return p
}

// emulated returns EmulationVersion, or what stands for it.
func (p Peer) emulated() string {
	if p.EmulationVersion == "" {
		return p.BinaryVersion
	}
	return p.EmulationVersion
}

// parseVersion reads a semantic version as the API server does for a
// LeaseCandidate: with all three numbers, and without "v" or space.
func parseVersion(s string) (*version.Version, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' || strings.TrimSpace(s) != s {
		return nil, false
	}
	v, err := version.ParseSemantic(s)
	return v, err == nil
}

// compareVersions orders versions; one that can't be read is the lowest.
func compareVersions(a, b string) int {
	v, ok := parseVersion(a)
	w, ok2 := parseVersion(b)
	switch {
	case !ok && !ok2:
		return 0
	case !ok:
		return -1
	case !ok2:
		return 1
	case v.LessThan(w):
		return -1
	case w.LessThan(v):
		return 1
	}
	return 0
}
