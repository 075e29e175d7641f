// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsynctest tests providers of package podsync and programs that use it. It has
// a backend that simulates pods in memory and can inject faults. It also has a test suite
// that checks whether a provider keeps podsync's contract.
//
// # Usage
//
// A [Backend] holds the pods. It outlives the process that controls them, as a real
// backend does. A [Provider] is the connection of that process to the Backend:
//
//	backend := podsynctest.NewBackend(podsynctest.Options{StopTime: 2 * time.Second})
//	controller, err := podsync.New(podsync.Config{Provider: backend.Connect(), ...})
//
// Crash ends the connection, as if the process had died. Connect then returns the
// connection of the next process. The Backend has a journal of all calls, and
// [Backend.Violations] returns the calls that broke the contract.
//
// To test a custom provider, call TestProvider:
//
//	func TestContract(t *testing.T) {
//		podsynctest.TestProvider(t, podsynctest.Suite{New: newProvider})
//	}
//
// # Behavior
//
// A pod has the containers of its spec. They run from their start until Stop or Exit is
// called. The Backend uses package time, so it works in a testing/synctest bubble.
//
// # Concurrency
//
// All methods may be called from any number of goroutines.
package podsynctest
