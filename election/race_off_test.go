// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package election

// soakSeconds is the virtual time of all soak tests together, in seconds. The
// race detector makes each of them ten times as expensive and finds no more in
// many.
const soakSeconds = 200_000
