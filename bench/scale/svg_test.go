// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLinearScale(t *testing.T) {
	for _, test := range []struct {
		high  float64
		ticks []float64
	}{
		{0, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{1, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{1.3, []float64{0, 0.5, 1, 1.5}},
		{5.9, []float64{0, 1, 2, 3, 4, 5, 6}},
		{9.9, []float64{0, 2, 4, 6, 8, 10}},
		{20_000, []float64{0, 5000, 10_000, 15_000, 20_000}},
		{20_001, []float64{0, 5000, 10_000, 15_000, 20_000, 25_000}},
	} {
		s := linearScale(test.high)
		if diff := cmp.Diff(rounded(test.ticks), rounded(s.ticks)); diff != "" {
			t.Errorf("up to %v: -want +got\n%s", test.high, diff)
		}
		if low, high := s.position(0), s.position(s.ticks[len(s.ticks)-1]); low != 0 || math.Abs(high-1) > 1e-9 {
			t.Errorf("up to %v: the ends are at %v and %v", test.high, low, high)
		}
	}
}

func TestLogScale(t *testing.T) {
	for _, test := range []struct {
		low, high float64
		ticks     []float64
	}{
		{3, 3, []float64{1, 10}},
		{1, 10, []float64{1, 10}},
		{10, 10, []float64{10, 100}},
		{2, 350, []float64{1, 10, 100, 1000}},
		{0.5, 9, []float64{0.1, 1, 10}},
	} {
		s := logScale(test.low, test.high)
		if diff := cmp.Diff(rounded(test.ticks), rounded(s.ticks)); diff != "" {
			t.Errorf("%v to %v: -want +got\n%s", test.low, test.high, diff)
		}
		for _, v := range []float64{test.low, test.high, 0} {
			if p := s.position(v); p < 0 || p > 1+1e-9 {
				t.Errorf("%v to %v: %v is at %v", test.low, test.high, v, p)
			}
		}
	}
}

func rounded(values []float64) (all []float64) {
	for _, v := range values {
		all = append(all, math.Round(v*1e6)/1e6)
	}
	return all
}

func TestTickLabel(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.2: "0.2", 0.1 + 0.2: "0.3", 15: "15", 1000: "1k", 2500: "2.5k", 20_000: "20k"} {
		if got := tickLabel(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

func TestLinesAreInterrupted(t *testing.T) {
	same := func(v float64) float64 { return v }
	l := line{points: []point{{0, 1}, {1, 2}, {2, math.NaN()}, {3, 4}}}
	if got, want := l.path(same, same), "M0.0 1.0L1.0 2.0M3.0 4.0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (line{points: []point{{1, math.NaN()}}}).path(same, same); got != "" {
		t.Errorf("of no number: %q", got)
	}
}

// TestPicture draws a run: the picture must be well-formed, and have a line for
// all that was measured.
func TestPicture(t *testing.T) {
	first, second := good(), good()
	second.Name = theirs
	for i := range second.Samples {
		second.Samples[i].Starts = distribution{N: 1, P50: 1e6, P99: 2e6}
	}
	r := &results{Options: options{Nodes: 3, Pods: 10}, Contenders: []result{*first, *second}}
	c := picture(r)
	c.subtitle = "a < b & c"
	var b strings.Builder
	if err := c.write(&b); err != nil {
		t.Fatal(err)
	}
	elements := make(map[string]int)
	texts := make(map[string]bool)
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, &b)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			texts[string(token)] = true
		}
	}
	for _, want := range []string{"a < b & c", ours, theirs, "Goroutines", c.title} {
		if !texts[want] {
			t.Errorf("the text %q is missing", want)
		}
	}
	if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
		t.Error("a coordinate is no number")
	}
	// 11 lines of each, but for the latencies: of the first there are none, of the
	// second those of starts.
	if got, want := strings.Count(b.String(), "stroke-linejoin"), len(c.legend)+2*11-6; got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
}
