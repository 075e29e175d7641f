// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package pod decides what happens to one pod of a node.
//
// A [State] contains everything that is known about the pod. [State.Apply] records facts
// from the API and from the provider that runs the pod, and the results of calls and
// requests. [State.Next] returns the next call of the provider or the next request to the
// API. [State.Check] returns the invariants that do not hold.
//
// The package has no goroutines, clients or clocks. The caller must hold a lock during each
// call.
package pod
