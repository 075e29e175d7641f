// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Timing.
const (
	// DefaultLeaseDuration is that of kube-controller-manager and
	// kube-scheduler.
	DefaultLeaseDuration = 15 * time.Second
	// DefaultRenewDeadline belongs to DefaultLeaseDuration.
	DefaultRenewDeadline = 10 * time.Second
	// DefaultRenewInterval belongs to DefaultLeaseDuration.
	DefaultRenewInterval = 3 * time.Second
	// DefaultDrain belongs to DefaultLeaseDuration, and is the largest default.
	DefaultDrain = 3 * time.Second
	// DefaultAckTimeout is how long a candidate has to answer an offer.
	DefaultAckTimeout = 5 * time.Second
	// DefaultMinTenure is how long a leader leads before a better candidate is
	// looked for.
	DefaultMinTenure = 30 * time.Second
)

// The times that can't be configured.
const (
	// stagger is the time between the claims of candidates that follow each
	// other in rank, when the lease is free.
	stagger = 500 * time.Millisecond
	// maxRank is the rank from which all claim at the same time.
	maxRank = 5
	// renewJitter is the share of RenewInterval by which a renewal comes sooner
	// or later.
	renewJitter = 0.1
	// leaderRetry, standbyRetry and hintRetry are the longest waits after failures:
	// of a leader, of the others, and of writes on which only preference depends.
	leaderRetry, standbyRetry, hintRetry = time.Second, 5 * time.Second, 30 * time.Second
	// minRetry is the shortest wait of a leader whose time runs out.
	minRetry         = 100 * time.Millisecond
	minRenewInterval = 100 * time.Millisecond
)

// Timing is how fast an election is, and what it endures. Zero fields have the
// defaults that their comments state, which go with LeaseDuration. It need not
// be the same in all replicas; [Timing.Validate] makes sure that each is safe
// by itself.
type Timing struct {
	// LeaseDuration is how long the others wait after the last renewal that
	// they have seen, by their own clocks, before they take over. Whole
	// seconds, at least two: the API has no fractions. Default:
	// DefaultLeaseDuration.
	LeaseDuration time.Duration
	// RenewDeadline is how long a leader leads after it sent the last renewal
	// that succeeded. Then the context of its work is cancelled. Default: two
	// thirds of LeaseDuration.
	RenewDeadline time.Duration
	// RenewInterval is the mean time between renewals; each is up to a tenth
	// sooner or later. Default: three tenths of RenewDeadline.
	RenewInterval time.Duration
	// Drain is how long the work may go on after its context was cancelled.
	// Only where that is kept are there never two leaders: declare it honestly.
	// Default: a fifth of LeaseDuration, at most DefaultDrain.
	Drain time.Duration
	// AckTimeout is how long a candidate to whom the leader offers the lease
	// has to accept it. Default: DefaultAckTimeout.
	AckTimeout time.Duration
	// MinTenure is how long a leader leads before it offers the lease to a
	// better candidate, so that a fleet that is being restarted settles first.
	// Default: DefaultMinTenure.
	MinTenure time.Duration
}

// LongOutageTiming returns the Timing for work that should survive an API
// server that is away for more than a minute, at the price that a crash costs
// up to two: LeaseDuration 120 s, RenewDeadline 90 s, RenewInterval 15 s.
func LongOutageTiming() Timing {
	return Timing{LeaseDuration: 120 * time.Second, RenewDeadline: 90 * time.Second, RenewInterval: 15 * time.Second}.WithDefaults()
}

// WithDefaults returns t with its zero fields filled in.
func (t Timing) WithDefaults() Timing {
	t.complete()
	return t
}

// Validate returns an error that names every field that is wrong, with the
// inequality that it breaks:
//
//	RenewDeadline + Drain < LeaseDuration
//	1.1 RenewInterval + a call (half of RenewDeadline, at most 5 s) < RenewDeadline
//
// The first one keeps two leaders apart, with [Timing.RateTolerance] to spare;
// the second leaves time for a second try when a renewal fails.
func (t Timing) Validate() error {
	return lifecycle.InvalidConfig("election", t.complete())
}

// MaxOutage is the longest time for which the API server may be away, whatever
// that looks like, without a leader being lost over it: a renewal was due when
// it went, and one that failed is repeated within a second.
func (t Timing) MaxOutage() time.Duration {
	t.complete()
	return t.RenewDeadline - t.longestInterval() - leaderRetry
}

// CrashFailover is the longest time from the crash of a leader to the next
// term, besides the time that a watch event and a request take: at least one
// candidate with a record (see [OnLease]) being alive. It is LeaseDuration and
// the stagger by which candidates claim in the order of their rank, 2.5 s at
// most. A leader that leaves in order is replaced at once.
func (t Timing) CrashFailover() time.Duration {
	t.complete()
	return t.LeaseDuration + maxRank*stagger
}

// RateTolerance is the error of the rate of clocks up to which there are never
// two leaders: 0.07 says that the clocks of two machines may each go wrong by
// 7 % in opposite directions. It is r in
//
//	(RenewDeadline + Drain) / (1 - r) = LeaseDuration / (1 + r)
//
// What the clocks show makes no difference at all.
func (t Timing) RateTolerance() float64 {
	t.complete()
	held := t.RenewDeadline + t.Drain
	return float64(t.LeaseDuration-held) / float64(t.LeaseDuration+held)
}

// longestInterval is RenewInterval with all of its jitter.
func (t Timing) longestInterval() time.Duration {
	return t.RenewInterval + time.Duration(renewJitter*float64(t.RenewInterval))
}

// callTimeout is the default of Config.CallTimeout.
func (t Timing) callTimeout() time.Duration { return min(t.RenewDeadline/2, DefaultCallTimeout) }

// complete fills in the defaults and returns all that is wrong.
func (t *Timing) complete() (problems field.ErrorList) {
	path := field.NewPath("Timing")
	add := func(name string, d time.Duration, format string, args ...any) {
		problems = append(problems, field.Invalid(path.Child(name), d.String(), fmt.Sprintf(format, args...)))
	}
	def := func(name string, d *time.Duration, def, minimum time.Duration) {
		problems = append(problems, spec.DefaultDuration(path.Child(name).String(), d, def, minimum)...)
	}
	problems = append(problems, lifecycle.DefaultDuration(path.Child("LeaseDuration").String(), &t.LeaseDuration, DefaultLeaseDuration, 2*time.Second)...)
	if t.LeaseDuration%time.Second != 0 {
		add("LeaseDuration", t.LeaseDuration, "must be whole seconds: the API has no others")
	}
	if t.LeaseDuration > spec.MaxLeaseDuration {
		add("LeaseDuration", t.LeaseDuration, "must be at most %v", spec.MaxLeaseDuration)
	}
	base := t.LeaseDuration
	if len(problems) > 0 {
		base = DefaultLeaseDuration // not to report the defaults of others
	}
	def("RenewDeadline", &t.RenewDeadline, base*2/3, time.Millisecond)
	def("RenewInterval", &t.RenewInterval, t.RenewDeadline*3/10, minRenewInterval)
	def("Drain", &t.Drain, min(base/5, DefaultDrain), time.Nanosecond)
	def("AckTimeout", &t.AckTimeout, DefaultAckTimeout, time.Millisecond)
	def("MinTenure", &t.MinTenure, DefaultMinTenure, time.Nanosecond)
	if len(problems) > 0 {
		return problems
	}
	if sum := t.RenewDeadline + t.Drain; sum >= t.LeaseDuration {
		add("RenewDeadline", t.RenewDeadline, "RenewDeadline + Drain < LeaseDuration must hold, but %v + %v >= %v: there would be two leaders", t.RenewDeadline, t.Drain, t.LeaseDuration)
	}
	if call := t.callTimeout(); t.longestInterval()+call >= t.RenewDeadline {
		add("RenewInterval", t.RenewInterval, "1.1 RenewInterval + a call < RenewDeadline must hold, but %v + %v >= %v: one renewal that fails would end the term", t.longestInterval(), call, t.RenewDeadline)
	}
	return problems
}
