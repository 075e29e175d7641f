// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package validation validates pools of devices before anything is sent.
//
// It checks what is about the whole pool, and what the scheduler can't parse although the
// API server stores it: then claims are not allocated, on any node. The API server sees one
// slice at a time, so it can't know that names are unique in a pool and that references to
// counters are valid.
//
// All other content of a device is for the API server to check. It names the device in its
// refusal, so that this device alone is left out. Its limits are those of its own version.
// testdata/verdicts.json has its answers for 204 pools.
package validation
