// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

// Gate is a feature gate of the API server that decides which fields it keeps.
type Gate string

// The gates that the server knows. Those not named here behave as they do on a
// server of the default version.
const (
	// CoordinatedLeaderElection keeps spec.strategy and spec.preferredHolder
	// of a Lease. Off by default.
	CoordinatedLeaderElection Gate = "CoordinatedLeaderElection"
)

// gatesOn are the gates that are on unless Options.Gates says otherwise.
var gatesOn = map[Gate]bool{}

func (s *Server) gate(g Gate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on, ok := s.gates[g]; ok {
		return on
	}
	return gatesOn[g]
}

// SetGate turns a gate on or off at run time. Stored objects keep what they
// have.
func (s *Server) SetGate(g Gate, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates == nil {
		s.gates = map[Gate]bool{}
	}
	s.gates[g] = on
}
