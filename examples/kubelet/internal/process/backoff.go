// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package process

import "time"

// Backoff is how long a container that has ended waits for its next start. The
// zero value of a field means its default, which is what a kubelet does.
type Backoff struct {
	// Initial is the wait before the second restart; before the first there is
	// none. Default: 10 s.
	Initial time.Duration
	// Max ends the doubling. Default: 5 min.
	Max time.Duration
	// Reset is how long a container must have run for its past to be
	// forgotten. Default: 10 min.
	Reset time.Duration
}

func (b Backoff) withDefaults() Backoff {
	if b.Initial <= 0 {
		b.Initial = 10 * time.Second
	}
	if b.Max <= 0 {
		b.Max = 5 * time.Minute
	}
	if b.Reset <= 0 {
		b.Reset = 10 * time.Minute
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
