// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// contenders are drawn in this order. The bare clients are dashed.
var contenders = []struct {
	name   string
	color  color.Color
	dashes []vg.Length
}{
	{theirs, color.RGBA{R: 0xd9, G: 0x73, B: 0x0d, A: 255}, nil},
	{ours, color.RGBA{R: 0x16, G: 0x67, B: 0xb0, A: 255}, nil},
	{bareAll, color.RGBA{R: 0x55, G: 0x55, B: 0x55, A: 255}, []vg.Length{vg.Points(4), vg.Points(2)}},
	{bareAsOurs, color.RGBA{R: 0x99, G: 0x99, B: 0x99, A: 255}, []vg.Length{vg.Points(1), vg.Points(2)}},
}

const (
	pictureWidth = 24 * vg.Centimeter
	headHeight   = 1.2 * vg.Centimeter
	panelHeight  = 5.5 * vg.Centimeter
)

// drawPicture draws, for each number of pods, how many of them run and how many are gone over time,
// and below that how the costs grow with the number of pods.
func drawPicture(all []measurement, file string) error {
	var sizes []int
	for _, m := range all {
		if !slices.Contains(sizes, m.pods) {
			sizes = append(sizes, m.pods)
		}
	}
	var rows [][]*plot.Plot
	for _, pods := range sizes {
		count := func(times []time.Duration) plotter.XYs {
			points := plotter.XYs{{}}
			for i, at := range times {
				points = append(points, plotter.XY{X: at.Seconds(), Y: float64(i + 1)})
			}
			return points
		}
		var row []*plot.Plot
		for _, p := range []struct {
			title string
			of    func(*measurement) []time.Duration
		}{
			{fmt.Sprintf("%d pods bound at once: pods Running", pods), func(m *measurement) []time.Duration { return m.running }},
			{fmt.Sprintf("%d pods deleted at once: pods gone", pods), func(m *measurement) []time.Duration { return m.gone }},
		} {
			row = append(row, panel(p.title, "seconds", func(name string) (points plotter.XYs) {
				at := slices.IndexFunc(all, func(m measurement) bool { return m.kubelet == name && m.pods == pods })
				if at < 0 {
					return nil
				}
				return count(p.of(&all[at]))
			}))
		}
		rows = append(rows, row)
	}
	for _, pair := range [][2]struct {
		title string
		of    func(*measurement) float64
	}{
		{
			{"Seconds until all run", func(m *measurement) float64 { return m.running[len(m.running)-1].Seconds() }},
			{"CPU, seconds", func(m *measurement) float64 { return m.cpu.Seconds() }},
		},
		{
			{"Resident memory with the pods, MiB", func(m *measurement) float64 { return float64(m.full.all) / 1024 }},
			{"Requests to the API server per pod", func(m *measurement) float64 { return m.requests() }},
		},
	} {
		var row []*plot.Plot
		for _, p := range pair {
			row = append(row, panel(p.title, "pods", func(name string) (points plotter.XYs) {
				for i := range all {
					if m := &all[i]; m.kubelet == name {
						points = append(points, plotter.XY{X: float64(m.pods), Y: p.of(m)})
					}
				}
				return points
			}))
		}
		rows = append(rows, row)
	}

	canvas := vgsvg.New(pictureWidth, headHeight+vg.Length(len(rows))*panelHeight)
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	style := text.Style{Font: font.From(plot.DefaultFont, 11), Handler: plot.DefaultTextHandler}
	for i, c := range contenders { // the legend is above the diagrams, so it covers no line
		x, y := vg.Centimeter+vg.Length(i)*5.5*vg.Centimeter, whole.Max.Y-0.8*vg.Centimeter
		whole.StrokeLine2(draw.LineStyle{Color: c.color, Width: vg.Points(1.5), Dashes: c.dashes}, x, y+3, x+vg.Centimeter, y+3)
		style.Color = color.Black
		whole.FillText(style, vg.Point{X: x + 1.2*vg.Centimeter, Y: y}, c.name)
	}
	body := draw.Crop(whole, 0.4*vg.Centimeter, -0.6*vg.Centimeter, 0.2*vg.Centimeter, -headHeight)
	tiles := draw.Tiles{Rows: len(rows), Cols: 2, PadX: 0.8 * vg.Centimeter, PadY: 0.4 * vg.Centimeter}
	for i, row := range plot.Align(rows, tiles, body) {
		for j := range row {
			rows[i][j].Draw(row[j])
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := canvas.WriteTo(f); err != nil {
		return err
	}
	return f.Close()
}

// panel returns a diagram with a line for each contender. Both axes begin at zero.
func panel(title, x string, of func(contender string) plotter.XYs) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, 10
	p.X.Label.Text, p.X.Label.TextStyle.Font.Size = x, 9
	p.Add(plotter.NewGrid())
	for _, c := range contenders {
		points := of(c.name)
		if len(points) == 0 {
			continue
		}
		line := &plotter.Line{XYs: points}
		line.Color, line.Width, line.Dashes = c.color, vg.Points(1.5), c.dashes
		p.Add(line)
	}
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, p.Y.Max*1.05
	return p
}

// TestPicture draws made-up measurements.
func TestPicture(t *testing.T) {
	var all []measurement
	for _, pods := range []int{2, 4} {
		for i, name := range []string{bareAll, bareAsOurs, theirs, ours} {
			m := measurement{kubelet: name, pods: pods, cpu: time.Duration(pods) * time.Second, full: memory{all: 1024 * pods}}
			for n := range pods {
				m.running = append(m.running, time.Duration(n+i+1)*time.Second)
				m.gone = append(m.gone, time.Duration(n+1)*time.Second)
			}
			all = append(all, m)
		}
	}
	file := filepath.Join(t.TempDir(), "kubelet.svg")
	if err := drawPicture(all, file); err != nil {
		t.Fatal(err)
	}
	p := panel("", "", func(string) plotter.XYs { return plotter.XYs{{X: 2.5, Y: 7}, {X: 3, Y: 8}} })
	if p.X.Min != 0 || p.Y.Min != 0 || p.X.Max < 3 || p.Y.Max < 8 {
		t.Errorf("the axes are %v to %v and %v to %v", p.X.Min, p.X.Max, p.Y.Min, p.Y.Max)
	}
}
