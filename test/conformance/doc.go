// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance runs Kubernetes' own conformance tests on examples/crikubelet.
// See README.md of that example for the results.
package conformance

import "embed"

// Source is everything that Kubernetes' programs are built from, except for the
// modules that it pins.
//
//go:embed _program/*.go _pause/*.go _sh/*.go versions/*.mod versions/*.sum
var Source embed.FS
