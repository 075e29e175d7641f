// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package pod decides what happens to one pod of a node.
//
// A [State] is everything that is known of the pod. [State.Apply] takes in facts: from the
// API, from the provider that runs the pod, and about calls and requests under way.
// [State.Next] returns the next call of the provider or the next request to the API.
// [State.Check] returns the invariants that do not hold.
//
// The package has no goroutines, clients or clocks. Its callers hold a lock for each call.
package pod
