// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance holds apitest to the truth: the same cases run
// against it and against a real control plane, and both must answer alike.
//
// A case is a script of requests. Each says with which code it is answered, for
// the fact that the case is about; all of the answer, with UIDs, times and
// resourceVersions replaced by what they stand for, goes into a transcript.
// The transcripts in testdata are recordings of the real API server, made by
// the test in test/e2e with -update. Where apitest differs, apitest is wrong.
package conformance
