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
	// DefaultAckTimeout is the time that a candidate has for the answer to an offer.
	DefaultAckTimeout = 5 * time.Second
	// DefaultMinTenure is the time that a leader leads before it offers the lease to
	// a better candidate.
	DefaultMinTenure = 30 * time.Second
)

// The times that can't be configured.
const (
	// stagger is the time between the claims of candidates of consecutive ranks
	// when the lease is free.
	stagger = 500 * time.Millisecond
	// maxRank is the rank from which all candidates claim at the same time.
	maxRank = 5
	// renewJitter is the share of RenewInterval by which a renewal is early or
	// late.
	renewJitter = 0.1
	// leaderRetry, standbyRetry and hintRetry are the longest waits after failures:
	// of a leader, of the others, and of writes on which only preference depends.
	leaderRetry, standbyRetry, hintRetry = time.Second, 5 * time.Second, 30 * time.Second
	// minRetry is the shortest wait of a leader whose time runs out.
	minRetry         = 100 * time.Millisecond
	minRenewInterval = 100 * time.Millisecond
)

// Timing holds the durations of an election. They determine the time of a fail-over
// and the length of an outage that costs no term. Defaults of zero fields derive
// from LeaseDuration. The replicas may have different Timings, because
// [Timing.Validate] ensures that each is safe on its own.
type Timing struct {
	// LeaseDuration is the time that other candidates wait after the last observed
	// renewal, by their own clocks, before they take over. It must be at least two
	// seconds, and whole seconds because the API has no fractions. Default:
	// DefaultLeaseDuration.
	LeaseDuration time.Duration
	// RenewDeadline is the time that a leader leads after it sent its last
	// successful renewal. Then the context of its work is cancelled. Default: two
	// thirds of LeaseDuration.
	RenewDeadline time.Duration
	// RenewInterval is the mean time between renewals; each is early or late by up
	// to a tenth. Default: three tenths of RenewDeadline.
	RenewInterval time.Duration
	// Drain is the longest time from the cancellation of the context of the work
	// until the work returns. If the work takes longer, there can be two leaders.
	// Default: a fifth of LeaseDuration, at most DefaultDrain.
	Drain time.Duration
	// AckTimeout is the time that a candidate has to accept an offer of the lease.
	// Default: DefaultAckTimeout.
	AckTimeout time.Duration
	// MinTenure is the time that a leader leads before it offers the lease to a
	// better candidate. It lets a fleet that restarts come to rest first. Default:
	// DefaultMinTenure.
	MinTenure time.Duration
}

// LongOutageTiming returns a Timing with which an API server outage of more than a
// minute costs no term, but a crash costs up to two minutes: LeaseDuration 120 s,
// RenewDeadline 90 s, RenewInterval 15 s.
func LongOutageTiming() Timing {
	return Timing{LeaseDuration: 120 * time.Second, RenewDeadline: 90 * time.Second, RenewInterval: 15 * time.Second}.WithDefaults()
}

// WithDefaults returns t with defaults in its zero fields.
func (t Timing) WithDefaults() Timing {
	t.complete()
	return t
}

// Validate returns an error that names every invalid field, with the inequality
// that it violates:
//
//	RenewDeadline + Drain < LeaseDuration
//	1.1 RenewInterval + a call (half of RenewDeadline, at most 5 s) < RenewDeadline
//
// The first one keeps two leaders apart, with [Timing.RateTolerance] to spare;
// the second leaves time for another renewal after one has failed.
func (t Timing) Validate() error {
	return lifecycle.InvalidConfig("election", t.complete())
}

// MaxOutage returns the longest API server outage of any kind that costs no term.
// In the worst case a renewal is due when the outage begins, and the last failed
// renewal is repeated a second after it ends.
func (t Timing) MaxOutage() time.Duration {
	t.complete()
	return t.RenewDeadline - t.longestInterval() - leaderRetry
}

// CrashFailover returns the longest time from the crash of a leader to the next
// term, if a candidate with a record is alive (see [OnLease]). The times of a watch
// event and of a request come in addition. It is LeaseDuration and up to 2.5 s in
// which candidates claim in the order of their rank. A leader that exits gracefully
// is replaced at once.
func (t Timing) CrashFailover() time.Duration {
	t.complete()
	return t.LeaseDuration + maxRank*stagger
}

// RateTolerance returns the largest error in the rate of clocks with which there
// are never two leaders. 0.07 means that one clock may run 7 % fast and another 7 %
// slow. It is r in
//
//	(RenewDeadline + Drain) / (1 - r) = LeaseDuration / (1 + r)
//
// A constant difference between clocks has no effect.
func (t Timing) RateTolerance() float64 {
	t.complete()
	held := t.RenewDeadline + t.Drain
	return float64(t.LeaseDuration-held) / float64(t.LeaseDuration+held)
}

// longestInterval returns RenewInterval with all of its jitter.
func (t Timing) longestInterval() time.Duration {
	return t.RenewInterval + time.Duration(renewJitter*float64(t.RenewInterval))
}

// callTimeout returns the default of Config.CallTimeout.
func (t Timing) callTimeout() time.Duration { return min(t.RenewDeadline/2, DefaultCallTimeout) }

// complete sets the defaults and returns all problems.
func (t *Timing) complete() (problems field.ErrorList) {
	path := field.NewPath("Timing")
	add := func(name string, d time.Duration, format string, args ...any) {
		problems = append(problems, field.Invalid(path.Child(name), d.String(), fmt.Sprintf(format, args...)))
	}
	def := func(name string, d *time.Duration, def, minimum time.Duration) {
		problems = append(problems, spec.DefaultDuration(path.Child(name).String(), d, def, minimum)...)
	}
	problems = append(problems, spec.DefaultLeaseDuration(path.Child("LeaseDuration"), &t.LeaseDuration, DefaultLeaseDuration)...)
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
