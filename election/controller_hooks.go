// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ControllerHooks are told what a [Controller] does. Each is optional. They are
// called synchronously and without locks by a goroutine of Run, one at a time for
// each Lease, and must not block. They may call every method of the Controller.
type ControllerHooks struct {
	// Elected is called after a candidate was made the holder of a Lease.
	Elected func(Elected)
	// Preferred is called after the holder of a Lease was asked to give way to
	// a better candidate, by the field preferredHolder.
	Preferred func(Preferred)
	// Silent is called when a candidate has left a ping unanswered. It is not
	// considered again before it renews its LeaseCandidate.
	Silent func(Silent)
	// Collected is called after a LeaseCandidate was deleted because it had not
	// been renewed for CandidateTTL.
	Collected func(Collected)
	// RequestFailed is called after each request about a Lease that failed.
	RequestFailed func(RequestFailed)
}

// Elected is the argument of ControllerHooks.Elected.
type Elected struct {
	// Lease is what the candidate was elected for.
	Lease types.NamespacedName
	// Holder is the candidate.
	Holder string
	// Previous is who held the Lease before; "" where nobody did.
	Previous string
	// Strategy is by what the candidate is the best.
	Strategy string
	// Unrenewed is how long nobody was seen to renew the Lease before; 0 where
	// it did not exist or had no holder.
	Unrenewed time.Duration
}

// Preferred is the argument of ControllerHooks.Preferred.
type Preferred struct {
	// Lease is what it is about.
	Lease types.NamespacedName
	// Holder is who is asked to give way, and PreferredHolder to whom.
	Holder, PreferredHolder string
}

// Silent is the argument of ControllerHooks.Silent.
type Silent struct {
	// Lease is what the candidate stands for.
	Lease types.NamespacedName
	// Candidate is the name of the LeaseCandidate.
	Candidate string
}

// Collected is the argument of ControllerHooks.Collected.
type Collected struct {
	// Lease is what the candidate stood for.
	Lease types.NamespacedName
	// Candidate is the name of the LeaseCandidate.
	Candidate string
}

// RequestFailed is the argument of ControllerHooks.RequestFailed.
type RequestFailed struct {
	// Lease is what the request was about.
	Lease types.NamespacedName
	// Action is what was to be done: look, ping, hush, assign, announce, offer,
	// retract or collect. It is fit for a label of a metric, and so is Class, the
	// kind of failure: Timeout, Conflict, Forbidden, Throttled, Server …
	Action, Class string
	// Err is the error.
	Err error
}
