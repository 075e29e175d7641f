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
	"gonum.org/v1/plot/plotter"
)

func TestCurvesAreInterruptedWithoutANumber(t *testing.T) {
	samples := []sample{{At: 0, Requests: 1}, {At: 60, Requests: 2}, {At: 120, Requests: math.NaN()}, {At: 180, Requests: 0}, {At: 240, Requests: 4}}
	c := curve{value: func(s sample) float64 { return s.Requests }}
	for _, test := range []struct {
		log  bool
		want []plotter.XYs
	}{
		{false, []plotter.XYs{{{X: 0, Y: 1}, {X: 1, Y: 2}}, {{X: 3, Y: 0}, {X: 4, Y: 4}}}},
		{true, []plotter.XYs{{{X: 0, Y: 1}, {X: 1, Y: 2}}, {{X: 4, Y: 4}}}},
	} {
		if diff := cmp.Diff(test.want, c.segments(samples, test.log)); diff != "" {
			t.Errorf("log %t: -want +got\n%s", test.log, diff)
		}
	}
}

// TestPictureShowsEveryMeasurement draws a run. The picture must be well-formed
// and have every panel, with the lines of both contenders.
func TestPictureShowsEveryMeasurement(t *testing.T) {
	first, second := good(), good()
	second.Name = theirs
	for i := range second.Samples {
		second.Samples[i].Starts = distribution{N: 1, P50: 1e6, P99: 2e6}
	}
	for name, r := range map[string]*results{
		"both":        {Options: options{Nodes: 3, Pods: 10}, Contenders: []result{*first, *second}},
		"no samples":  {Contenders: []result{{Name: ours}}},
		"none at all": {},
	} {
		var b strings.Builder
		if err := writePicture(&b, r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text := content(t, b.String())
		for _, p := range panels {
			if !strings.Contains(text, p.title) {
				t.Errorf("%s: the panel %q is missing", name, p.title)
			}
		}
		for _, c := range r.Contenders {
			if !strings.Contains(text, c.Name) {
				t.Errorf("%s: %s is not in the legend", name, c.Name)
			}
		}
		if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
			t.Errorf("%s: a coordinate is not a number", name)
		}
		ourStroke, theirStroke := strings.Count(b.String(), "stroke:#1667B0"), strings.Count(b.String(), "stroke:#D9730D")
		// Each contender has eleven curves and, in each panel, two lines that
		// mark the churn. The first contender has no latencies, the second has
		// none of deletions.
		if marks := 2 * len(panels); name == "both" && (ourStroke != 11-4+marks || theirStroke != 11-2+marks) {
			t.Errorf("%d and %d lines, want %d and %d", ourStroke, theirStroke, 11-4+marks, 11-2+marks)
		}
	}
}

// content returns the texts of an SVG document, one per line.
func content(t *testing.T, document string) string {
	t.Helper()
	var text strings.Builder
	for d := xml.NewDecoder(strings.NewReader(document)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if data, ok := token.(xml.CharData); ok {
			text.Write(data)
			text.WriteByte('\n')
		}
	}
}
