// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import "time"

// A Verdict is the decision about the configuration on trial.
type Verdict int

const (
	// Undecided: the trial goes on.
	Undecided Verdict = iota
	// Passed: it was healthy for Soak without a break.
	Passed
	// Failed: it was unhealthy for Grace without a break.
	Failed
	// Lasted: its process has lived for Soak, and may be unwell now and then. That it
	// ends later, perhaps in a power cut, says nothing about the configuration.
	Lasted
)

// String returns the name of the verdict.
func (v Verdict) String() string {
	return [...]string{"Undecided", "Passed", "Failed", "Lasted"}[v]
}

// A soak follows the health of the configuration on trial within one process.
// Its times carry the monotonic clock, so a step of the wall clock neither
// shortens nor lengthens a trial.
//
// Invariant: a configuration is not healthy and unhealthy at once.
type soak struct {
	good time.Time // start of the unbroken health; zero while unhealthy
	bad  time.Time // start of the unbroken illness; zero while healthy
}

// observe applies the result of a check at now.
func (s soak) observe(now time.Time, healthy bool) soak {
	if healthy {
		s.bad = time.Time{}
		if s.good.IsZero() {
			s.good = now
		}
		return s
	}
	s.good = time.Time{}
	if s.bad.IsZero() {
		s.bad = now
	}
	return s
}

// verdict decides after a check at now.
func (s soak) verdict(now time.Time, r *Rules) Verdict {
	switch {
	case !s.good.IsZero() && now.Sub(s.good) >= r.Soak:
		return Passed
	case !s.bad.IsZero() && now.Sub(s.bad) >= r.Grace:
		return Failed
	}
	return Undecided
}

// next returns the delay after now until the next check. The check that could
// decide is made on time.
func (s soak) next(now time.Time, r *Rules) time.Duration {
	decides := s.good.Add(r.Soak)
	if !s.bad.IsZero() {
		decides = s.bad.Add(r.Grace)
	}
	left := max(decides.Sub(now), 0)
	if !r.Health {
		return left
	}
	if left == 0 || left > r.Every {
		return r.Every
	}
	return left
}
