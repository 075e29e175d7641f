// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// NewUID returns a UID that is unique within the server and the same in every
// run of a test.
func (s *Server) NewUID() types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids++
	return types.UID(fmt.Sprintf("%08x-7e57-4000-8000-%012x", s.uids, s.uids*2654435761&0xffffffffffff))
}

// maxGenerated is the maximal length of a generateName: with five more
// characters it has the length of a DNS label.
const maxGenerated = 58

// suffixAlphabet has no vowels and no digits that look like vowels, so that
// generated names contain no words.
const suffixAlphabet = "bcdfghjklmnpqrstvwxz2456789"

// generateName appends five characters to base. They look random, are the same
// in every run of a test, and don't repeat.
func (s *Server) generateName(base string) string {
	s.mu.Lock()
	s.suffixes++
	n := s.suffixes
	s.mu.Unlock()
	const all = 27 * 27 * 27 * 27 * 27
	n = n * 7919083 % all
	var suffix [5]byte
	for i := range suffix {
		suffix[i] = suffixAlphabet[n%27]
		n /= 27
	}
	return base[:min(len(base), maxGenerated)] + string(suffix[:])
}
