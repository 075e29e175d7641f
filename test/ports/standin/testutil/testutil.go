// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package testutil stands in for a package of nomad that only the tests of the provider
// import. Without it go mod tidy fails.
package testutil
