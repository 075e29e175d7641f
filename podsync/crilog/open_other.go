// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package crilog

// noFollow is 0: no container runtime of this repository runs on these systems.
const noFollow = 0
