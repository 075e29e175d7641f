// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podruntimetest tests whether a podruntime.Runtime keeps its contract.
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
// The suite needs no cluster. It calls the Runtime directly, in the way in which a
// podruntime.Provider does. To test the Provider with the Runtime in it, use the suite of
// package podsynctest. Optional capabilities are tested if the Runtime has them.
package podruntimetest
