// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// colours maps each contender to its colour.
var colours = map[string]color.Color{
	ours:   color.RGBA{R: 0x16, G: 0x67, B: 0xb0, A: 0xff},
	theirs: color.RGBA{R: 0xd9, G: 0x73, B: 0x0d, A: 0xff},
}

// The dimensions of the picture.
const (
	pictureWidth = 24 * vg.Centimeter
	headHeight   = 2 * vg.Centimeter
	panelHeight  = 4.5 * vg.Centimeter
)

// A panel is a diagram with one time axis and one or more lines for each
// contender.
type panel struct {
	title string // with the unit
	log   bool   // use a logarithmic axis
	lines []curve
}

// A curve is one value of each sample. The line is interrupted at NaN values.
type curve struct {
	dashed bool
	value  func(sample) float64
}

var panels = []panel{
	{title: "Pods Running", lines: []curve{{value: func(s sample) float64 { return float64(s.Running) }}}},
	{title: "From bound to Running, ms: p50, p99 (dashed)", log: true, lines: quantileCurves(func(s sample) distribution { return s.Starts })},
	{title: "From deleted to gone, ms: p50, p99 (dashed)", log: true, lines: quantileCurves(func(s sample) distribution { return s.Ends })},
	{title: "Requests to the API server, 1/s", lines: []curve{{value: func(s sample) float64 { return s.Requests }}}},
	{title: "Memory, MiB: resident, heap (dashed)", lines: []curve{
		{value: func(s sample) float64 { return float64(s.Resident) / (1 << 20) }},
		{dashed: true, value: func(s sample) float64 { return float64(s.Heap) / (1 << 20) }},
	}},
	{title: "Goroutines", lines: []curve{{value: func(s sample) float64 { return float64(s.Goroutines) }}}},
	{title: "CPU, cores: the program, the API server (dashed)", lines: []curve{
		{value: func(s sample) float64 { return s.Cores }},
		{dashed: true, value: func(s sample) float64 { return s.APIServer }},
	}},
}

// quantileCurves returns the curves of the median and the 99th percentile. An
// interval without values interrupts them.
func quantileCurves(of func(sample) distribution) []curve {
	quantile := func(q func(distribution) time.Duration) func(sample) float64 {
		return func(s sample) float64 {
			if of(s).N == 0 {
				return math.NaN()
			}
			return q(of(s)).Seconds() * 1000
		}
	}
	return []curve{
		{value: quantile(func(d distribution) time.Duration { return d.P50 })},
		{dashed: true, value: quantile(func(d distribution) time.Duration { return d.P99 })},
	}
}

// writePicture draws a run as SVG: the panels one below the other, with one
// legend.
func writePicture(w io.Writer, r *results) error {
	var column [][]*plot.Plot
	for i, p := range panels {
		drawn, err := p.plot(r, i == len(panels)-1)
		if err != nil {
			return fmt.Errorf("draw %q: %w", p.title, err)
		}
		column = append(column, []*plot.Plot{drawn})
	}
	canvas := vgsvg.New(pictureWidth, headHeight+vg.Length(len(panels))*panelHeight)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())

	style := text.Style{Color: color.Black, Font: font.From(plot.DefaultFont, 14), Handler: plot.DefaultTextHandler}
	left, top := vg.Centimeter, all.Max.Y
	all.FillText(style, vg.Point{X: left, Y: top - 0.7*vg.Centimeter}, fmt.Sprintf("%d nodes and %d pods in one process", r.Options.Nodes, r.Options.Pods))
	style.Font = font.From(plot.DefaultFont, 9)
	all.FillText(style, vg.Point{X: left, Y: top - 1.3*vg.Centimeter}, fmt.Sprintf(
		"%g pods/s replaced and %g Nodes/min deleted for %s, between the dotted lines; before: ramp-up, after: all pods deleted",
		r.Options.PodChurn, r.Options.NodeChurn, short(r.Options.Duration)))
	for i := range r.Contenders {
		style.Color = colours[r.Contenders[i].Name]
		all.FillText(style, vg.Point{X: left + vg.Length(i)*3*vg.Centimeter, Y: top - 1.8*vg.Centimeter}, "— "+r.Contenders[i].Name)
	}

	body := draw.Crop(all, 0.4*vg.Centimeter, -0.5*vg.Centimeter, 0, -headHeight)
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: 0.3 * vg.Centimeter}
	for i, row := range plot.Align(column, tiles, body) {
		column[i][0].Draw(row[0])
	}
	_, err := canvas.WriteTo(w)
	return err
}

// plot returns the diagram of a panel. Only the last panel labels the time
// axis.
func (p panel) plot(r *results, last bool) (*plot.Plot, error) {
	drawn := plot.New()
	drawn.Title.Text = p.title
	drawn.Title.TextStyle.Font.Size = 9
	if last {
		drawn.X.Label.Text = "minutes since the program was started"
		drawn.X.Label.TextStyle.Font.Size = 8
	}
	drawn.Add(plotter.NewGrid())
	low, high := math.Inf(1), 0.0
	for i := range r.Contenders {
		result := &r.Contenders[i]
		for _, c := range p.lines {
			for _, segment := range c.segments(result.Samples, p.log) {
				line, err := plotter.NewLine(segment)
				if err != nil {
					return nil, err
				}
				line.Color, line.Width = colours[result.Name], vg.Points(1)
				if c.dashed {
					line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
				}
				drawn.Add(line)
				for _, point := range segment {
					low, high = min(low, point.Y), max(high, point.Y)
				}
			}
		}
		for _, sample := range result.Samples {
			drawn.X.Max = max(drawn.X.Max, sample.At/60)
		}
	}
	drawn.X.Min, drawn.X.Max = 0, max(drawn.X.Max, 1.0/60)
	if p.log && high > 0 {
		// Use whole decades, because otherwise the ticks of a narrow range have
		// no labels.
		drawn.Y.Scale, drawn.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		drawn.Y.Min = math.Pow(10, math.Floor(math.Log10(low)))
		drawn.Y.Max = max(math.Pow(10, math.Ceil(math.Log10(high))), 10*drawn.Y.Min)
	} else {
		drawn.Y.Min, drawn.Y.Max = 0, max(high, 1)
		drawn.Y.Tick.Marker = plot.TickerFunc(shortTicks)
	}
	for i := range r.Contenders {
		if err := addChurn(drawn, &r.Contenders[i]); err != nil {
			return nil, err
		}
	}
	return drawn, nil
}

// shortTicks returns the default ticks without the zeros of their labels, for which the margin has no room.
func shortTicks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = strconv.FormatFloat(ticks[i].Value, 'g', 6, 64)
		}
	}
	return ticks
}

// segments returns the points of a curve, in minutes, without NaN values. A
// logarithmic axis cannot show zero, so zero interrupts the line there.
func (c curve) segments(samples []sample, log bool) []plotter.XYs {
	var all []plotter.XYs
	open := false
	for _, s := range samples {
		y := c.value(s)
		if math.IsNaN(y) || log && y <= 0 {
			open = false
			continue
		}
		if !open {
			all, open = append(all, nil), true
		}
		all[len(all)-1] = append(all[len(all)-1], plotter.XY{X: s.At / 60, Y: y})
	}
	return all
}

// addChurn adds dotted lines at the start and the end of a contender's churn.
func addChurn(drawn *plot.Plot, r *result) error {
	if r.Churn.To <= 0 {
		return nil
	}
	for _, at := range []float64{r.Churn.From / 60, r.Churn.To / 60} {
		line, err := plotter.NewLine(plotter.XYs{{X: at, Y: drawn.Y.Min}, {X: at, Y: drawn.Y.Max}})
		if err != nil {
			return err
		}
		line.Color, line.Width, line.Dashes = colours[r.Name], vg.Points(0.7), []vg.Length{vg.Points(1), vg.Points(3)}
		drawn.Add(line)
	}
	return nil
}

// short formats a duration without trailing zeros: 10m, not 10m0s.
func short(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%g s", d.Seconds())
}
