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

// Backoff configures the delay between the end of a container and its next start. The
// zero value of a field means its default.
type Backoff struct {
	// Initial is the delay before the second restart. The first restart has no delay,
	// and after the second one the delay doubles. Default: DefaultBackoffInitial.
	Initial time.Duration
	// Max is the longest delay. Default: DefaultBackoffMax.
	Max time.Duration
	// Reset is the time that a container must run for the delay to begin again.
	// Default: DefaultBackoffReset.
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
