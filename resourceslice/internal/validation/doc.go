// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package validation validates pools of devices before anything is sent.
//
// It checks everything that the API server checks in a ResourceSlice, with the
// limits of Kubernetes 1.37, so that a caller learns of a problem at once. It
// also makes the checks that the API server can't, because that sees one slice at
// a time: names are unique in a pool, and references to counters are valid. And it
// refuses what the API server stores and the scheduler can't parse. The
// rules are those of the API documentation and of the API server's validation.
// testdata/verdicts.json has the API server's answers for 204 pools.
package validation
