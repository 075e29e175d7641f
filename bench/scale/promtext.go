// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metric is a line of the Prometheus text format.
type metric struct {
	name   string
	labels map[string]string
	value  float64
}

// parseMetric parses a line; ok is false for comments and empty ones. A timestamp
// after the value is ignored.
func parseMetric(line string) (m metric, ok bool, err error) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return m, false, nil
	}
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return m, false, fmt.Errorf("no value in %q", line)
	}
	m.name = line[:end]
	rest := line[end:]
	if rest[0] == '{' {
		if m.labels, rest, err = parseLabels(rest[1:]); err != nil {
			return m, false, fmt.Errorf("%w in %q", err, line)
		}
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 || len(fields) > 2 {
		return m, false, fmt.Errorf("no value in %q", line)
	}
	m.value, err = strconv.ParseFloat(fields[0], 64)
	return m, err == nil, err
}

// parseLabels parses what follows the opening brace up to the closing one, and
// returns what is behind it.
func parseLabels(s string) (labels map[string]string, rest string, err error) {
	labels = make(map[string]string)
	for {
		s = strings.TrimLeft(s, ", ")
		if strings.HasPrefix(s, "}") {
			return labels, s[1:], nil
		}
		name, after, found := strings.Cut(s, "=\"")
		if !found {
			return nil, "", fmt.Errorf("no label value")
		}
		var value strings.Builder
		i := 0
		for ; i < len(after) && after[i] != '"'; i++ {
			c := after[i]
			if c == '\\' && i+1 < len(after) {
				i++
				if c = after[i]; c == 'n' {
					c = '\n'
				}
			}
			value.WriteByte(c)
		}
		if i == len(after) {
			return nil, "", fmt.Errorf("no end of a label value")
		}
		labels[strings.TrimSpace(name)] = value.String()
		s = after[i+1:]
	}
}

// histogram is that of a Prometheus client: how many values were not greater
// than each bound, the last of which is infinite.
type histogram map[float64]float64

// readHistograms reads the buckets of the histogram called name, those that key
// gives the same key added up. Those with an empty key are left out.
func readHistograms(r io.Reader, name string, key func(labels map[string]string) string) (map[string]histogram, error) {
	all := make(map[string]histogram)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), name+"_bucket{") {
			continue
		}
		m, ok, err := parseMetric(lines.Text())
		if err != nil {
			return nil, err
		}
		k := key(m.labels)
		if !ok || k == "" {
			continue
		}
		bound, err := strconv.ParseFloat(m.labels["le"], 64)
		if err != nil {
			return nil, fmt.Errorf("bound of %s: %w", name, err)
		}
		if all[k] == nil {
			all[k] = make(histogram)
		}
		all[k][bound] += m.value
	}
	return all, lines.Err()
}

// since returns the histogram of what h has and before, an earlier state of it,
// has not.
func (h histogram) since(before histogram) histogram {
	d := maps.Clone(h)
	for bound := range d {
		d[bound] -= before[bound]
	}
	return d
}

// count returns the number of values.
func (h histogram) count() float64 { return h[math.Inf(1)] }

// quantile returns an estimate of a quantile as Prometheus makes it: within a
// bucket values are taken for evenly spread, and what is above the last finite
// bound is taken for that bound. Of no values it returns 0.
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
