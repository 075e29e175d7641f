// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadHistograms(t *testing.T) {
	const text = `# TYPE took histogram
took_bucket{verb="GET",scope="a",le="0.1"} 1
took_bucket{verb="GET",scope="a",le="+Inf"} 2
took_bucket{verb="GET",scope="b",le="0.1"} 10
took_bucket{verb="GET",scope="b",le="+Inf"} 10
took_bucket{verb="WATCH",scope="b",le="+Inf"} 5
took_sum{verb="GET"} 3
took_count{verb="GET"} 2
# TYPE tooks counter
tooks{verb="GET"} 100
`
	got, err := readHistograms(strings.NewReader(text), "took", func(labels map[string]string) string {
		if labels["verb"] == "WATCH" {
			return ""
		}
		return labels["verb"]
	})
	want := map[string]histogram{"GET": {0.1: 11, math.Inf(1): 12}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, -want +got\n%s", err, diff)
	}
	for name, text := range map[string]string{
		"a bound that is not a number": "# TYPE took histogram\ntook_bucket{le=\"x\"} 1\n",
		"a counter":                    "# TYPE took counter\ntook 1\n",
	} {
		if _, err := readHistograms(strings.NewReader(text), "took", func(map[string]string) string { return "k" }); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestHistogramQuantile(t *testing.T) {
	inf := math.Inf(1)
	for _, test := range []struct {
		name string
		h    histogram
		q    float64
		want time.Duration
	}{
		{"of nothing", histogram{1: 0, inf: 0}, 0.5, 0},
		{"in the middle of the first bucket", histogram{1: 10, inf: 10}, 0.5, 500 * time.Millisecond},
		{"in the second bucket", histogram{1: 5, 2: 10, inf: 10}, 0.75, 1500 * time.Millisecond},
		{"behind an empty bucket", histogram{1: 0, 2: 0, 4: 10, inf: 10}, 0.5, 3 * time.Second},
		{"above the last bound", histogram{1: 5, inf: 10}, 0.99, time.Second},
		{"at a bound", histogram{1: 5, 2: 10, inf: 10}, 0.5, time.Second},
	} {
		if got := test.h.quantile(test.q); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestHistogramSince(t *testing.T) {
	inf := math.Inf(1)
	after := histogram{1: 7, inf: 9}
	if diff := cmp.Diff(histogram{1: 4, inf: 5}, after.since(histogram{1: 3, inf: 4})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff(histogram{1: 7, inf: 9}, after.since(nil)); diff != "" {
		t.Errorf("since there was none: -want +got\n%s", diff)
	}
}
