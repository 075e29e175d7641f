// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"time"
)

// colours are those of the contenders.
var colours = map[string]string{ours: "#1667b0", theirs: "#d9730d"}

// picture returns the chart of a run.
func picture(r *results) *chart {
	c := &chart{
		title: fmt.Sprintf("%d nodes and %d pods in one process", r.Options.Nodes, r.Options.Pods),
		subtitle: fmt.Sprintf("%g pods/s replaced and %g Nodes/min deleted for %s, between the dotted lines; before: ramp-up, after: all pods deleted",
			r.Options.PodChurn, r.Options.NodeChurn, short(r.Options.Duration)),
		axis: "all axes: minutes since the program was started",
		panels: []panel{
			{title: "Pods Running"},
			{title: "From bound to Running, ms: p50, p99 (dashed)", log: true},
			{title: "From deleted to gone, ms: p50, p99 (dashed)", log: true},
			{title: "Requests to the API server, 1/s"},
			{title: "Memory, MiB: resident, heap (dashed)"},
			{title: "Goroutines"},
			{title: "CPU, cores: the program, the API server (dashed)"},
		},
	}
	for i := range r.Contenders {
		result := &r.Contenders[i]
		colour := colours[result.Name]
		c.legend = append(c.legend, legend{text: result.Name, colour: colour})
		if churn := result.Churn; churn.To > 0 {
			c.marks = append(c.marks, mark{churn.From / 60, colour}, mark{churn.To / 60, colour})
		}
		for _, s := range result.Samples {
			c.end = max(c.end, s.At/60)
		}
		rows := [][]line{
			{series(result, colour, false, func(s sample) float64 { return float64(s.Running) })},
			quantileLines(result, colour, func(s sample) distribution { return s.Starts }),
			quantileLines(result, colour, func(s sample) distribution { return s.Ends }),
			{series(result, colour, false, func(s sample) float64 { return s.Requests })},
			{
				series(result, colour, false, func(s sample) float64 { return float64(s.Resident) / (1 << 20) }),
				series(result, colour, true, func(s sample) float64 { return float64(s.Heap) / (1 << 20) }),
			},
			{series(result, colour, false, func(s sample) float64 { return float64(s.Goroutines) })},
			{
				series(result, colour, false, func(s sample) float64 { return s.Cores }),
				series(result, colour, true, func(s sample) float64 { return s.APIServer }),
			},
		}
		for i, lines := range rows {
			c.panels[i].lines = append(c.panels[i].lines, lines...)
		}
	}
	c.end = max(c.end, 1.0/60)
	return c
}

// series returns a line of one value of each sample.
func series(r *result, colour string, dashed bool, value func(sample) float64) line {
	l := line{colour: colour, dashed: dashed}
	for _, s := range r.Samples {
		l.points = append(l.points, point{s.At / 60, value(s)})
	}
	return l
}

// quantileLines returns the lines of the median and of the 99th percentile, which
// are interrupted where nothing happened.
func quantileLines(r *result, colour string, of func(sample) distribution) []line {
	quantile := func(q func(distribution) time.Duration) func(sample) float64 {
		return func(s sample) float64 {
			if of(s).N == 0 {
				return math.NaN()
			}
			return q(of(s)).Seconds() * 1000
		}
	}
	return []line{
		series(r, colour, false, quantile(func(d distribution) time.Duration { return d.P50 })),
		series(r, colour, true, quantile(func(d distribution) time.Duration { return d.P99 })),
	}
}

// short writes a duration without the zeros at its end: 10m, not 10m0s.
func short(d time.Duration) string {
	switch {
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	default:
		return fmt.Sprintf("%g s", d.Seconds())
	}
}
