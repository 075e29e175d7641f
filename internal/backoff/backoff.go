// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package backoff computes how long to wait before the next try.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Policy is an exponential backoff with a cap and jitter. It keeps no state:
// the caller counts its failures in a row, and a success sets the count back
// to zero. That makes a policy one value for ten thousand nodes.
type Policy struct {
	// Base is the delay after the first failure, before jitter.
	Base time.Duration
	// Cap is the longest delay, before jitter.
	Cap time.Duration
	// Jitter is the share of a delay that is drawn, above 0 and at most 1.
	// 0 means a half.
	Jitter float64
}

// Delay returns how long to wait after so many failures in a row: Base doubled
// with each failure after the first, at most Cap, then drawn evenly from its
// upper half (or the share that Jitter says). The lower half is left out so
// that a failing call is never repeated at once; the upper half is enough to
// spread a fleet.
// It returns 0 for no failure.
func (p Policy) Delay(failures int) time.Duration {
	return p.delay(failures, rand.Float64())
}

// delay is Delay with the draw r in [0,1) given.
func (p Policy) delay(failures int, r float64) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := p.Cap
	// Past 62 doublings every base overflows; well before that the cap holds.
	if shift := failures - 1; shift < 62 && p.Base <= p.Cap>>shift {
		d = p.Base << shift
	}
	jitter := p.Jitter
	if jitter == 0 {
		jitter = 0.5
	}
	return time.Duration(float64(d) * (1 - jitter*(1-r)))
}
