// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e contains the end-to-end tests: they run the packages and the
// examples against a real control plane with real credentials. It has no other
// code.
//
// "make e2e" runs the tests; a plain "go test ./..." skips each with a one-line
// reason.
package e2e
