// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

var (
	// ErrOffersDropped is reported by a [Controller] when the API server does
	// not keep the field preferredHolder of a Lease, because the feature gate
	// CoordinatedLeaderElection is off. A better candidate then takes over only
	// when the term of the holder ends by itself. It is tried again every hour
	// or two.
	ErrOffersDropped = errors.New("election: the API server drops preferredHolder (feature gate CoordinatedLeaderElection): better candidates wait until the term of the holder ends")

	// errAltered is the failure of a write that went well and did not have its
	// effect, as an admission webhook may bring about.
	errAltered = errors.New("the API server has stored something else than it was sent")
)

// CandidateInvalidError is reported by a [Controller] for a LeaseCandidate that
// can't be considered, once for each. The others are not affected.
type CandidateInvalidError struct {
	// Candidate is the LeaseCandidate.
	Candidate types.NamespacedName
	// Err is a utilerrors.Aggregate of *field.Error with all that is wrong.
	Err error
}

// Error implements error.
func (e *CandidateInvalidError) Error() string {
	return fmt.Sprintf("election: LeaseCandidate %s is ignored: %v", e.Candidate, e.Err)
}

// Unwrap returns what is wrong.
func (e *CandidateInvalidError) Unwrap() error { return e.Err }

// PermissionError is reported by a [Controller] that may not do what it must.
// It tries again, more and more rarely.
type PermissionError struct {
	// Verb is get, list, create, patch or delete. What is listed is watched,
	// too.
	Verb string
	// Resource is leases or leasecandidates.
	Resource string
	// Namespace is where; "" for everywhere.
	Namespace string
	// Err is the answer of the API server.
	Err error
}

// Error implements error.
func (e *PermissionError) Error() string {
	where := "all namespaces"
	if e.Namespace != "" {
		where = "namespace " + e.Namespace
	}
	return fmt.Sprintf("election: not allowed to %s %s in %s: %v", e.Verb, e.Resource, where, e.Err)
}

// Unwrap returns the answer of the API server.
func (e *PermissionError) Unwrap() error { return e.Err }
