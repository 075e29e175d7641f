// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"strconv"
	"strings"
)

// Gate is a feature gate of the API server that decides which fields it keeps.
type Gate string

// The gates that the server knows. It treats the fields of other gates as a
// server of its version with default gates.
const (
	// CoordinatedLeaderElection keeps spec.strategy and spec.preferredHolder
	// of a Lease.
	CoordinatedLeaderElection Gate = "CoordinatedLeaderElection"

	// WatchList serves watches that begin with the list of objects
	// (sendInitialEvents). If it is off, they are answered with 422.
	WatchList Gate = "WatchList"

	// NodeDeclaredFeatures keeps status.declaredFeatures of a Node.
	NodeDeclaredFeatures Gate = "NodeDeclaredFeatures"

	// These keep fields of ResourceSlices.
	DRADeviceTaints              Gate = "DRADeviceTaints"
	DRAPartitionableDevices      Gate = "DRAPartitionableDevices"
	DRADeviceBindingConditions   Gate = "DRADeviceBindingConditions"
	DRAConsumableCapacity        Gate = "DRAConsumableCapacity"
	DRADeviceCompatibilityGroups Gate = "DRADeviceCompatibilityGroups"
	DRANodeAllocatableResources  Gate = "DRANodeAllocatableResources"
	DRAListTypeAttributes        Gate = "DRAListTypeAttributes"
	DRAPartitionableDevicesType  Gate = "DRAPartitionableDevicesType"
	DRAOptionalNodeOperations    Gate = "DRAOptionalNodeOperations"
)

// onSince is the minor version from which a gate is on by default; the others
// are off in all versions.
var onSince = map[Gate]int{
	WatchList: 34, NodeDeclaredFeatures: 36,
	DRADeviceTaints: 36, DRAPartitionableDevices: 36, DRADeviceBindingConditions: 36, DRAConsumableCapacity: 36,
}

func (s *Server) gate(g Gate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on, ok := s.gates[g]; ok {
		return on
	}
	since, ok := onSince[g]
	return ok && s.minor >= since
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

// minorOf is the minor version in a version like v1.37.1, 0 in others.
func minorOf(version string) int {
	_, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(minor)
	return n
}
