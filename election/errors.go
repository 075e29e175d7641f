// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import "errors"

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("election: already run: a Candidate or Controller runs once")

	// ErrLost is the cause of the end of a term when somebody else has taken,
	// edited or deleted the Lease.
	ErrLost = errors.New("election: lease lost")
	// ErrExpired is the cause of the end of a term when the lease could not be
	// renewed within RenewDeadline.
	ErrExpired = errors.New("election: lease not renewed in time")
	// ErrSuperseded is the cause of the end of a term when the lease is handed
	// to a better candidate.
	ErrSuperseded = errors.New("election: a better candidate takes over")
	// ErrResigned is the cause of the end of a term after [Candidate.Resign].
	ErrResigned = errors.New("election: resigned")

	// ErrNoCandidateAPI is reported where the API server does not serve
	// LeaseCandidate in coordination.k8s.io/v1beta1. The candidate goes on and
	// claims the lease as a last resort, see [Config.FallbackAfter].
	ErrNoCandidateAPI = errors.New("election: LeaseCandidate is not served in coordination.k8s.io/v1beta1 (--runtime-config)")
	// ErrMixedRegistries is reported where the Lease shows that other candidates
	// use the other [Registry].
	ErrMixedRegistries = errors.New("election: candidates for one Lease use different registries")
)
