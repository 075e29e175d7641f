// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance verifies that apitest answers like a real control plane:
// it runs the same cases against both.
//
// A case is a script of requests. Each request states the expected status code.
// The transcript holds the whole answer, in which UIDs, times and
// resourceVersions are replaced by placeholders. The transcripts in testdata
// are recordings of the real API server, made by the test in test/e2e with
// -update-conformance. If apitest differs from them, apitest is wrong.
//
// The case named corpus sends malformed and unusual requests, and records only
// the status codes. The fuzz tests of apitest use the same requests as seeds.
package conformance

import ()
