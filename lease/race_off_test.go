// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package lease

// fleetSize is how many nodes the tests of a fleet have. The race detector
// makes each of them ten times as expensive and finds no more in many.
const fleetSize = 10_000
