// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"slices"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	const s, m = time.Second, time.Minute
	kubelet := Backoff{10 * s, 5 * m, 10 * m}
	// Each run has a duration and the wait before the next one.
	for name, tc := range map[string]struct {
		backoff   Backoff
		ran, want []time.Duration
	}{
		"a kubelet's":      {kubelet, slices.Repeat([]time.Duration{s}, 8), []time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 5 * m, 5 * m}},
		"after a long run": {kubelet, []time.Duration{s, s, s, 10 * m, s, s}, []time.Duration{0, 10 * s, 20 * s, 0, 10 * s, 20 * s}},
		"not long enough":  {kubelet, []time.Duration{s, s, 10*m - s}, []time.Duration{0, 10 * s, 20 * s}},
		"its own": {
			Backoff{Initial: 2 * s, Max: 3 * s, Reset: m},
			[]time.Duration{s, s, s, s, m, s}, []time.Duration{0, 2 * s, 3 * s, 3 * s, 0, 2 * s},
		},
		"no doubling": {Backoff{10 * s, 10 * s, 10 * m}, []time.Duration{s, s, s}, []time.Duration{0, 10 * s, 10 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []time.Duration
			var waited time.Duration
			for attempt, ran := range tc.ran {
				waited = tc.backoff.Next(attempt, waited, ran)
				got = append(got, waited)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("the waits are %v, want %v", got, tc.want)
			}
		})
	}
}

func TestDue(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for finished, want := range map[time.Duration]time.Duration{
		0:                10 * time.Second,
		-3 * time.Second: 7 * time.Second,
		-time.Hour:       -time.Hour + 10*time.Second,
		time.Hour:        10 * time.Second, // the clock was set back
	} {
		if got := due(now.Add(finished), 10*time.Second, now).Sub(now); got != want {
			t.Errorf("finished at %v: due at %v, want %v", finished, got, want)
		}
	}
}
