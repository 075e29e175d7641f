// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"image/color"
	"path/filepath"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// draw draws the number of pods that run, and that are gone, over time.
func draw(t *testing.T, all []measurement, dir string) {
	t.Helper()
	colors := map[string]color.Color{"kubelet": color.RGBA{R: 0x88, G: 0x88, B: 0x88, A: 255}, "crikubelet": color.RGBA{R: 0x1f, G: 0x6f, B: 0xeb, A: 255}}
	p := plot.New()
	p.Title.Text = "Pods bound at once, then deleted at once"
	p.X.Label.Text, p.Y.Label.Text = "seconds", "pods"
	p.Legend.Top, p.Legend.Left = true, true
	for _, m := range all {
		if m.pods != 100 {
			continue
		}
		for _, phase := range []struct {
			name   string
			times  []time.Duration
			dashes []vg.Length
		}{{"running", m.running, nil}, {"gone", m.gone, []vg.Length{vg.Points(4), vg.Points(3)}}} {
			var points plotter.XYs
			for i, at := range phase.times {
				points = append(points, plotter.XY{X: at.Seconds(), Y: float64(i + 1)})
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				t.Fatal(err)
			}
			line.Color, line.Width, line.Dashes = colors[m.kubelet], vg.Points(1.5), phase.dashes
			p.Add(line)
			p.Legend.Add(fmt.Sprintf("%s, %s", m.kubelet, phase.name), line)
		}
	}
	if err := p.Save(16*vg.Centimeter, 9*vg.Centimeter, filepath.Join(dir, "kubelet.svg")); err != nil {
		t.Fatal(err)
	}
}
