// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end tests: the packages and the examples against
// a real control plane, with real credentials. It has no code of its own.
//
// "make e2e" runs them; a plain "go test ./..." skips each with one line.
package e2e
