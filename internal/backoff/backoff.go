// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package backoff computes the delay before the next retry.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Policy is an exponential backoff with a cap and jitter. It has no state: the
// caller counts consecutive failures and resets the count after a success. Ten
// thousand nodes can therefore share one Policy.
type Policy struct {
	// Base is the delay after the first failure, before jitter.
	Base time.Duration
	// Cap is the longest delay, before jitter.
	Cap time.Duration
	// Jitter is the random share of a delay, above 0 and at most 1. 0 means one
	// half.
	Jitter float64
}

// Delay returns the delay after the given number of consecutive failures: Base,
// doubled with each failure after the first, at most Cap. The last half of the
// delay (or the share in Jitter) is random. The first half is fixed, so that a
// failing call is never repeated at once; the random half is enough to spread a
// fleet. Delay returns 0 for 0 failures.
func (p Policy) Delay(failures int) time.Duration {
	return p.DelayAt(failures, rand.Float64())
}

// DelayAt is Delay with a given random number r in [0,1), for callers that must decide
// the same for the same arguments.
func (p Policy) DelayAt(failures int, r float64) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := p.Cap
	// Any base overflows after 62 doublings; the cap applies long before that.
	if shift := failures - 1; shift < 62 && p.Base <= p.Cap>>shift {
		d = p.Base << shift
	}
	jitter := p.Jitter
	if jitter == 0 {
		jitter = 0.5
	}
	return time.Duration(float64(d) * (1 - jitter*(1-r)))
}
