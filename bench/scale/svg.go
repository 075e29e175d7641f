// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// chart is a picture of panels below each other with one time axis.
type chart struct {
	title, subtitle string
	axis            string  // what the time axes show
	end             float64 // of them, in minutes
	legend          []legend
	marks           []mark
	panels          []panel
}

// legend tells what a line means.
type legend struct {
	text   string
	colour string
	dashed bool
}

// mark is a moment that is shown in all panels.
type mark struct {
	at     float64 // minutes
	colour string
}

// panel is a diagram.
type panel struct {
	title string // with the unit
	log   bool   // a logarithmic axis, by decades
	lines []line
}

// line is a row of points. Where one is not a number, the line is interrupted.
type line struct {
	colour string
	dashed bool
	points []point
}

// point is a value at a time in minutes.
type point struct{ x, y float64 }

// Sizes of the picture, in its units.
const (
	chartWidth  = 960.0
	leftMargin  = 64.0
	rightMargin = 16.0
	headHeight  = 84.0
	plotHeight  = 120.0
	panelHeight = plotHeight + 56 // with title and labels
	axisColour  = "#d8d8d8"
	textColour  = "#333333"
)

// write writes the chart as SVG.
func (c *chart) write(w io.Writer) error {
	height := headHeight + float64(len(c.panels))*panelHeight
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"12\" fill=\"%s\">\n", chartWidth, height, textColour)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", html.EscapeString(c.title))
	text(&b, leftMargin, 24, "font-size=\"17\" font-weight=\"bold\"", c.title)
	text(&b, leftMargin, 44, "", c.subtitle)
	c.writeLegend(&b)
	text(&b, chartWidth-rightMargin, headHeight+16, "text-anchor=\"end\"", c.axis)
	for i, p := range c.panels {
		c.writePanel(&b, p, headHeight+float64(i)*panelHeight)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *chart) writeLegend(b *strings.Builder) {
	x := leftMargin
	for _, l := range c.legend {
		fmt.Fprintf(b, "<path d=\"M%.0f 64h28\" %s/>\n", x, stroke(l.colour, l.dashed))
		text(b, x+34, 68, "", l.text)
		x += 34 + 7*float64(len(l.text)) + 22
	}
}

// x returns where a time is.
func (c *chart) x(minutes float64) float64 {
	return leftMargin + (chartWidth-leftMargin-rightMargin)*minutes/c.end
}

// writePanel writes a panel whose upper edge is at top.
func (c *chart) writePanel(b *strings.Builder, p panel, top float64) {
	top += 24
	text(b, leftMargin, top-8, "font-weight=\"bold\"", p.title)
	s := p.scale()
	y := func(v float64) float64 { return top + plotHeight*(1-s.position(v)) }
	for _, t := range s.ticks {
		fmt.Fprintf(b, "<path d=\"M%.0f %.1fH%.0f\" stroke=\"%s\"/>\n", leftMargin, y(t), chartWidth-rightMargin, axisColour)
		text(b, leftMargin-6, y(t)+4, "text-anchor=\"end\"", tickLabel(t))
	}
	for _, t := range linearScale(c.end).ticks {
		if t <= c.end {
			fmt.Fprintf(b, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\"/>\n", c.x(t), top, top+plotHeight, axisColour)
			text(b, c.x(t), top+plotHeight+15, "text-anchor=\"middle\"", tickLabel(t))
		}
	}
	for _, m := range c.marks {
		fmt.Fprintf(b, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\" stroke-dasharray=\"1 3\" fill=\"none\"/>\n", c.x(m.at), top, top+plotHeight, m.colour)
	}
	for _, l := range p.lines {
		if d := l.path(c.x, y); d != "" {
			fmt.Fprintf(b, "<path d=\"%s\" %s/>\n", d, stroke(l.colour, l.dashed))
		}
	}
}

// path returns the d attribute of a line.
func (l line) path(x, y func(float64) float64) string {
	var b strings.Builder
	pen := "M"
	for _, p := range l.points {
		if math.IsNaN(p.y) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, x(p.x), y(p.y))
		pen = "L"
	}
	return b.String()
}

// stroke returns the attributes of a line.
func stroke(colour string, dashed bool) string {
	s := fmt.Sprintf("stroke=\"%s\" stroke-width=\"1.5\" fill=\"none\" stroke-linejoin=\"round\"", colour)
	if dashed {
		s += " stroke-dasharray=\"5 3\" opacity=\"0.75\""
	}
	return s
}

func text(b *strings.Builder, x, y float64, attributes, s string) {
	if attributes != "" {
		attributes = " " + attributes
	}
	fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, attributes, html.EscapeString(s))
}
