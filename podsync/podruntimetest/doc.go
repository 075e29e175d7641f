// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podruntimetest holds a podruntime.Runtime to its contract.
//
// # Usage
//
//	func TestContract(t *testing.T) {
//		podruntimetest.TestRuntime(t, podruntimetest.Suite{
//			New:      newRuntime,
//			Forever:  func() corev1.Container { return command("sleep", "inf") },
//			Stubborn: …,
//			Exits:    …,
//		})
//	}
//
// The suite needs no cluster. It calls the Runtime as a podruntime.Provider does,
// without one; package podsynctest has the suite for the Provider that the Runtime
// makes. Optional capabilities are tested if the Runtime has them.
package podruntimetest
