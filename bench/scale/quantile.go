// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"time"
)

// distribution summarizes a set of durations. The zero value is that of the
// empty set.
type distribution struct {
	N   int           `json:"n"`
	P50 time.Duration `json:"p50"`
	P90 time.Duration `json:"p90"`
	P99 time.Duration `json:"p99"`
	Max time.Duration `json:"max"`
}

// distribute returns the distribution of times. It sorts times.
func distribute(times []time.Duration) distribution {
	if len(times) == 0 {
		return distribution{}
	}
	slices.Sort(times)
	return distribution{
		N:   len(times),
		P50: nearestRank(times, 0.5),
		P90: nearestRank(times, 0.9),
		P99: nearestRank(times, 0.99),
		Max: times[len(times)-1],
	}
}

// nearestRank returns the smallest of the sorted values such that at least a
// share q of them is not greater. The result is always one of the values.
func nearestRank[T any](sorted []T, q float64) T {
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// median returns the median of values, or 0 if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return nearestRank(slices.Sorted(slices.Values(values)), 0.5)
}

// span is a duration and the time at which it ended.
type span struct {
	End  time.Time
	Took time.Duration
}

// within returns the durations of the spans that ended in [from, to).
func within(spans []span, from, to time.Time) (times []time.Duration) {
	for _, s := range spans {
		if !s.End.Before(from) && s.End.Before(to) {
			times = append(times, s.Took)
		}
	}
	return times
}
