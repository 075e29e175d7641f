// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsynctest tests providers and programs that use podsync: a backend in
// memory that runs pods by saying so, with faults, and a suite that holds any
// provider to podsync's contract.
//
// # Usage
//
// A [Backend] is the world in which pods run, and outlives the process that
// controls them. A [Provider] is that process's connection to it:
//
//	backend := podsynctest.NewBackend(podsynctest.Options{StopTime: 2 * time.Second})
//	controller, err := podsync.New(podsync.Config{Provider: backend.Connect(), ...})
//
// Crash cuts the connection as the death of the process would; Connect makes
// the next one. The Backend keeps a journal of calls and of every breach of the
// contract that it saw: see [Backend.Violations].
//
// A custom provider is tested with one call:
//
//	func TestContract(t *testing.T) {
//		podsynctest.TestProvider(t, podsynctest.Suite{New: newProvider})
//	}
//
// # Behavior
//
// Pods have as many containers as their spec says, which run from the moment
// they have started until Stop or Exit is called. Time is that of
// package time, so everything works in a testing/synctest bubble.
//
// # Concurrency
//
// All methods may be called from any number of goroutines.
package podsynctest
