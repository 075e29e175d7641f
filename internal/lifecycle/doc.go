// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle implements the common parts of every controller's Run
// method: the guard that lets Run run once, readiness, liveness from progress,
// the context of shutdown work, and configuration errors in one format.
//
// The package is internal and makes no compatibility promise. Its types appear
// in no exported signature except as interfaces that client-go defines.
package lifecycle
