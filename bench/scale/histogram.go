// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A histogram maps each upper bound to the number of values that are not
// greater. The last bound is infinite.
type histogram map[float64]float64

// readHistograms reads the histogram called name from the Prometheus text
// format. It adds up the series for which key returns the same string, and
// omits those for which key returns "".
func readHistograms(r io.Reader, name string, key func(labels map[string]string) string) (map[string]histogram, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("parse metrics: %w", err)
	}
	family := families[name]
	if family == nil {
		return nil, nil
	}
	if family.GetType() != dto.MetricType_HISTOGRAM {
		return nil, fmt.Errorf("metric %s is a %v, want a histogram", name, family.GetType())
	}
	all := make(map[string]histogram)
	for _, m := range family.GetMetric() {
		labels := make(map[string]string, len(m.GetLabel()))
		for _, pair := range m.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		k := key(labels)
		if k == "" {
			continue
		}
		if all[k] == nil {
			all[k] = make(histogram)
		}
		for _, bucket := range m.GetHistogram().GetBucket() {
			all[k][bucket.GetUpperBound()] += float64(bucket.GetCumulativeCount())
		}
	}
	return all, nil
}

// since returns the difference between h and before, an earlier state of the
// same histogram.
func (h histogram) since(before histogram) histogram {
	d := maps.Clone(h)
	for bound := range d {
		d[bound] -= before[bound]
	}
	return d
}

// count returns the number of values.
func (h histogram) count() float64 { return h[math.Inf(1)] }

// quantile estimates a quantile like Prometheus: it assumes that the values in
// a bucket are evenly distributed, and uses the last finite bound for values
// above it. It returns 0 if h has no values.
func (h histogram) quantile(q float64) time.Duration {
	rank := q * h.count()
	if rank == 0 {
		return 0
	}
	var low, below float64
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		if math.IsInf(bound, 1) {
			break
		}
		if h[bound] >= rank {
			low += (bound - low) * (rank - below) / (h[bound] - below)
			break
		}
		low, below = bound, h[bound]
	}
	return time.Duration(low * float64(time.Second))
}
