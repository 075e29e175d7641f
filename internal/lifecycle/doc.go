// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle holds what the Run method of every controller needs and
// what none of them should write for itself: the guard that lets Run run once,
// readiness, liveness from progress, the context of shutdown work, and the one
// form of configuration errors.
//
// It makes no promise to embedders: it is internal, and its types appear in no
// exported signature but as the interfaces that client-go defines.
package lifecycle
