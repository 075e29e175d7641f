// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package core decides when a pool of devices is published, how to handle writes whose
// answers are lost, and which of several instances of a program publishes the pool.
// [State.Apply] records facts. [State.Next], [State.Turn], [State.Repeat], [State.Judge] and
// [State.Found] return decisions and change nothing. The package has no clock and no client.
//
// Package resourceslice decides what to write, in plan.go.
package core
