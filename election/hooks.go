// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"errors"
	"time"
)

// Hooks report events. Each is optional. They are called synchronously
// and without locks by the goroutine of Run, one at a time, and must not block: a
// hook that takes longer than the lease has left costs it. They may call every
// method of the Candidate. A panic in a hook is reported and has no other effect.
type Hooks struct {
	// TermStarted is called when this candidate begins to lead, before Lead.
	TermStarted func(TermStarted)
	// TermEnded is called when Lead has returned.
	TermEnded func(TermEnded)
	// LeaderChanged is called when the observed holder of the Lease changes, also to
	// this candidate.
	LeaderChanged func(LeaderChanged)
	// Renewed is called after each renewal.
	Renewed func(Renewed)
	// Failed is called after each request about the Lease that failed, except for
	// conflicts, which are part of the protocol.
	Failed func(Failed)
	// Offered is called when this candidate leads and offers the lease to a
	// better one.
	Offered func(Offered)
	// OfferEnded is called when the other candidate has accepted the offer, or when
	// the offer is withdrawn.
	OfferEnded func(OfferEnded)
}

// TermStarted is the argument of Hooks.TermStarted.
type TermStarted struct {
	// Token is [Term.Token].
	Token uint64
	// Transitions is leaseTransitions of the Lease.
	Transitions int32
	// Vacant is the duration of the fail-over: the time since a leader was last observed to
	// claim, renew or give away the lease, or since this candidate has led. It is 0 if the
	// candidate has observed no leader, for example because it started later.
	Vacant time.Duration
}

// TermEnded is the argument of Hooks.TermEnded.
type TermEnded struct {
	// Token is [Term.Token].
	Token uint64
	// Cause is the reason: ErrLost, ErrExpired, ErrSuperseded, ErrResigned, the
	// cause of the context of Run, or nil if Lead returned on its own.
	Cause error
	// Duration is the length of the term.
	Duration time.Duration
	// Drained is the time from the cancellation of Lead's context to its return.
	Drained time.Duration
}

// LeaderChanged is the argument of Hooks.LeaderChanged.
type LeaderChanged struct {
	// From and To are holder identities as on the Lease, "" for none.
	From, To string
}

// Renewed is the argument of Hooks.Renewed.
type Renewed struct {
	// Latency is the duration of the call.
	Latency time.Duration
}

// Failed is the argument of Hooks.Failed.
type Failed struct {
	// Op names the request.
	Op Op
	// Class is a short constant name of the kind of failure, for a metric label:
	// Timeout, Unreachable, Forbidden, Throttled, Server …
	Class string
	// Err is the error.
	Err error
}

// Offered is the argument of Hooks.Offered.
type Offered struct {
	// To is the identity of the candidate, as on the Lease.
	To string
}

// OfferEnded is the argument of Hooks.OfferEnded.
type OfferEnded struct {
	// To is the identity of the candidate, as on the Lease.
	To string
	// Accepted reports whether the candidate accepted, so that the lease will be
	// handed over. A candidate that does not accept gets no other offer for a while.
	Accepted bool
	// Elapsed is the time since the offer was made, before the request that stored it.
	Elapsed time.Duration
}

// An Op names a request.
type Op string

// The requests of a Candidate.
const (
	OpRead     Op = "read"     // GET of the Lease
	OpWatch    Op = "watch"    // the watch of the Lease
	OpClaim    Op = "claim"    // the write that begins a term
	OpRenew    Op = "renew"    // a renewal
	OpHandOver Op = "handover" // the write that gives the lease away
	OpPublish  Op = "publish"  // the write of this candidate's record
	OpWithdraw Op = "withdraw" // the removal of that record
)

var (
	// ErrAlreadyRun is returned by Run when it was called before.
	ErrAlreadyRun = errors.New("election: already run: a Candidate runs once")

	// errGoexit is the result of a Lead that called runtime.Goexit.
	errGoexit = errors.New("election: lead: ended by runtime.Goexit")

	// ErrLost is the cause of the end of a term when another client has taken,
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

	// ErrNoCandidateAPI is reported if the API server does not serve
	// LeaseCandidate in coordination.k8s.io/v1beta1. The candidate continues without
	// it and claims a vacant lease after another Timing.LeaseDuration.
	ErrNoCandidateAPI = errors.New("election: LeaseCandidate is not served in coordination.k8s.io/v1beta1 (--runtime-config)")
	// ErrMixedRegistries is reported if the Lease shows that other candidates
	// use the other [Registry].
	ErrMixedRegistries = errors.New("election: candidates for one Lease use different registries")
)
