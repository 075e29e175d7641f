// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// NewUID returns a UID that is unique within the server and the same in every
// run of a test with the same seed.
func (s *Server) NewUID() types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids++
	n := s.uids ^ s.scattered()
	return types.UID(fmt.Sprintf("%08x-7e57-4000-8000-%012x", n, n*2654435761&0xffffffffffff))
}

// scattered returns 32 bits that differ in many places between small seeds, so that the
// order of UIDs and names differs, too. It is 0 for the seed 0.
func (s *Server) scattered() uint64 { return s.Seed * 0x9e3779b97f4a7c15 >> 32 }

// maxGenerated is the maximal length of a generateName: with five more
// characters it has the length of a DNS label.
const maxGenerated = 58

// suffixAlphabet has no vowels and no digits that look like vowels, so that
// generated names contain no words.
const suffixAlphabet = "bcdfghjklmnpqrstvwxz2456789"

// generateName appends five characters to base. They look random, are the same
// in every run of a test with the same seed, and don't repeat.
func (s *Server) generateName(base string) string {
	s.mu.Lock()
	s.suffixes++
	n := s.suffixes
	s.mu.Unlock()
	const all = 27 * 27 * 27 * 27 * 27
	n = (n + s.scattered()) % all * 7919083 % all
	var suffix [5]byte
	for i := range suffix {
		suffix[i] = suffixAlphabet[n%27]
		n /= 27
	}
	return base[:min(len(base), maxGenerated)] + string(suffix[:])
}
