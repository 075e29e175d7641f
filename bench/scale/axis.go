// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"strconv"
)

// scale maps the values of an axis to 0 … 1.
type scale struct {
	ticks    []float64
	position func(v float64) float64
}

// scale returns the one that has room for all values of the panel.
func (p panel) scale() scale {
	low, high := math.Inf(1), 0.0
	for _, l := range p.lines {
		for _, point := range l.points {
			if point.y > 0 {
				low, high = min(low, point.y), max(high, point.y)
			}
		}
	}
	if p.log && high > 0 {
		return logScale(low, high)
	}
	return linearScale(high)
}

// linearScale returns a scale from 0 to high, with four to seven ticks at 1, 2 or
// 5 times a power of ten; the last is not below high.
func linearScale(high float64) scale {
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high)))
	for _, part := range []float64{0.2, 0.5, 1, 2} {
		if high/(step*part) <= 6 {
			step *= part
			break
		}
	}
	count := math.Ceil(high/step - 1e-9)
	s := scale{position: func(v float64) float64 { return v / (count * step) }}
	for i := 0.0; i <= count; i++ {
		s.ticks = append(s.ticks, i*step)
	}
	return s
}

// logScale returns a scale of whole decades that has room for low and high, both
// of which are positive. What is not positive is at its lower end.
func logScale(low, high float64) scale {
	from := math.Floor(math.Log10(low) + 1e-9)
	to := max(math.Ceil(math.Log10(high)-1e-9), from+1)
	s := scale{position: func(v float64) float64 {
		if v <= 0 {
			return 0
		}
		return (math.Log10(v) - from) / (to - from)
	}}
	for decade := from; decade <= to; decade++ {
		s.ticks = append(s.ticks, math.Pow(10, decade))
	}
	return s
}

// tickLabel writes a value at an axis: 20000 as 20k.
func tickLabel(v float64) string {
	if v >= 1000 && math.Mod(v, 100) == 0 {
		return strconv.FormatFloat(v/1000, 'f', -1, 64) + "k"
	}
	return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
}
