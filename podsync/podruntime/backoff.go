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
