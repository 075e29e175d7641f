// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import "time"

// The defaults of Backoff are those of the kubelet.
const (
	DefaultBackoffInitial = 10 * time.Second
	DefaultBackoffMax     = 5 * time.Minute
	DefaultBackoffReset   = 10 * time.Minute
)

// Backoff is how long a container that has ended waits for its next start. The
// zero value of a field means its default.
type Backoff struct {
	// Initial is the wait before the second restart; before the first there is
	// none. Default: DefaultBackoffInitial.
	Initial time.Duration
	// Max ends the doubling. Default: DefaultBackoffMax.
	Max time.Duration
	// Reset is how long a container must have run for its past to be
	// forgotten. Default: DefaultBackoffReset.
	Reset time.Duration
}

func (b Backoff) withDefaults() Backoff {
	if b.Initial <= 0 {
		b.Initial = DefaultBackoffInitial
	}
	if b.Max <= 0 {
		b.Max = DefaultBackoffMax
	}
	if b.Reset <= 0 {
		b.Reset = DefaultBackoffReset
	}
	b.Max = max(b.Max, b.Initial)
	return b
}

// next returns how long to wait after a run. attempt counts the runs from 0,
// waited is how long this one had waited itself, and ran how long it has lasted.
func (b Backoff) next(attempt int, waited, ran time.Duration) time.Duration {
	switch {
	case attempt == 0, ran >= b.Reset:
		return 0
	case waited == 0:
		return b.Initial
	}
	return min(2*waited, b.Max)
}

// due returns when a container may be started again that has finished at a time and
// is to wait. That time was read from a clock that may have been set back since,
// which is no reason to wait for longer.
func due(finished time.Time, wait time.Duration, now time.Time) time.Time {
	return now.Add(min(finished.Add(wait).Sub(now), wait))
}
