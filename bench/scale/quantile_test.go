// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestDistribute(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i) // not sorted
	}
	for _, test := range []struct {
		name  string
		times []time.Duration
		want  distribution
	}{
		{"none", nil, distribution{}},
		{"one", []time.Duration{7}, distribution{1, 7, 7, 7, 7}},
		{"two", []time.Duration{9, 1}, distribution{2, 1, 9, 9, 9}},
		{"1 to 100", hundred, distribution{100, 50, 90, 99, 100}},
	} {
		if got := distribute(test.times); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
	} {
		if got := median(test.values); got != test.want {
			t.Errorf("median(%v) = %v, want %v", test.values, got, test.want)
		}
	}
}

func TestWithin(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	spans := []span{{at(1), 10}, {at(2), 20}, {at(3), 30}}
	got := within(spans, at(1), at(3))
	if len(got) != 2 || got[0] != 10 || got[1] != 20 {
		t.Errorf("within [1, 3): %v, want those that ended at 1 and 2", got)
	}
}
