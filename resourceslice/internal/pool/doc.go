// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package pool decides when a pool of devices is published, what becomes of writes whose
// answers are lost, and which of several instances of a program publishes the pool. It has
// no clock and no client: [State.Apply] takes facts, [State.Next], [State.Turn],
// [State.Repeat], [State.Judge] and [State.Found] return decisions and change nothing.
//
// What a plan writes is decided by package resourceslice, in layout.go and plan.go.
package pool
