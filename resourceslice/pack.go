// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
)

const (
	// plainLimit and advancedLimit are how many devices a slice can hold,
	// without and with advanced ones among them.
	plainLimit    = resourcev1.ResourceSliceMaxDevices
	advancedLimit = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	counterLimit  = resourcev1.ResourceSliceMaxCounterSets

	// Pools of more pages than this get spare ones when they grow.
	spareAbove = 4
	// One spare page for so many.
	sparePer = 8
	// How many pages too many a pool must have before it is compacted.
	compactAbove = 8
)

// page is a slice as it is to be.
type page struct {
	rec      *record // what it is now; nil if it has to be created
	name     string
	counters bool   // it holds counter sets, not devices
	items    []item // in the order of the slice

	// What differs from rec; set by diff.
	content     bool // devices, counter sets or what applies to all of them
	metadata    bool // labels or owner
	restrictive bool // something is taken away from Pods
}

func (p *page) kind() int {
	switch {
	case p.counters:
		return counterPage
	case slices.ContainsFunc(p.items, func(i item) bool { return len(i.counterSets()) > 0 }):
		return consumerPage
	}
	return plainPage
}

func (p *page) advanced() bool { return slices.ContainsFunc(p.items, item.isAdvanced) }

// limit is how many items the page can hold as it is.
func (p *page) limit() int {
	switch {
	case p.counters:
		return counterLimit
	case p.advanced():
		return advancedLimit
	}
	return plainLimit
}

// layout puts items on pages. Whatever is on a page stays there if it can:
// then a change of one device is a change of one page.
type layout struct {
	counters bool
	pages    []*page
	left     []item // have no page yet
	create   int    // so many pages have to be created anyway
	fill     int    // how many items a new page gets
}

// newLayout begins a layout with what is on the live pages, newest generation
// first: a device that is on two pages stays on the newer one.
func newLayout(items []item, live []*record, counters bool) *layout {
	l := &layout{counters: counters, fill: advancedLimit}
	switch {
	case counters:
		l.fill = counterLimit
	case len(items) <= plainLimit && !slices.ContainsFunc(items, item.isAdvanced):
		l.fill = plainLimit // one page is always atomic
	}
	index := make(map[string]int, len(items))
	for i := range items {
		index[items[i].name] = i
	}
	placed := make([]bool, len(items))
	for _, rec := range live {
		p := &page{rec: rec, name: rec.Name, counters: counters}
		there := rec.devices
		if counters {
			there = rec.sets
		}
		for _, li := range there {
			if i, ok := index[li.name]; ok && !placed[i] {
				placed[i] = true
				p.items = append(p.items, items[i])
			}
		}
		l.pages = append(l.pages, p)
	}
	for i := range items {
		if !placed[i] {
			l.left = append(l.left, items[i])
		}
	}
	return l
}

// shed takes from pages what they can't hold any longer, as when a taint has
// made 64 devices the limit.
func (l *layout) shed() {
	for _, p := range l.pages {
		if limit := p.limit(); len(p.items) > limit {
			l.left = append(l.left, p.items[limit:]...)
			p.items = p.items[:limit:limit]
		}
	}
	slices.SortStableFunc(l.left, byName)
}

// compact empties the emptiest pages until keep are left, and drops them.
func (l *layout) compact(keep int) {
	slices.SortStableFunc(l.pages, func(a, b *page) int { return len(b.items) - len(a.items) })
	for _, p := range l.pages[keep:] {
		l.left = append(l.left, p.items...)
	}
	l.pages = l.pages[:keep]
	slices.SortStableFunc(l.left, byName)
}

// place gives every item that is left a page: those that have to be created
// anyway, then those with room that are to be written anyway, then the fullest,
// and new ones when all else is full.
func (l *layout) place(dirty func(*page) bool) {
	for ; l.create > 0; l.create-- {
		l.pages = append(l.pages, &page{counters: l.counters, items: l.take(l.fill, plainLimit)})
	}
	if len(l.left) == 0 {
		return
	}
	order := slices.Clone(l.pages)
	isDirty := make(map[*page]bool, len(order))
	for _, p := range order {
		isDirty[p] = dirty(p)
	}
	rank := func(p *page) int {
		if isDirty[p] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(order, func(a, b *page) int {
		return cmp.Or(rank(a)-rank(b), len(b.items)-len(a.items))
	})
	for _, p := range order {
		p.items = append(p.items, l.take(l.fill-len(p.items), p.limit()-len(p.items))...)
	}
	// Beyond the fill of a new page, plain devices go to plain pages only, the
	// emptiest first: a page of more than 64 devices has to shed some as soon
	// as one of them gets a taint.
	slices.SortStableFunc(order, func(a, b *page) int {
		return cmp.Or(rank(a)-rank(b), len(a.items)-len(b.items))
	})
	for _, p := range order {
		if len(l.left) > 0 && !l.counters && p.limit() == plainLimit {
			p.items = append(p.items, l.takePlain(plainLimit-len(p.items))...)
		}
	}
	grown := len(l.pages) > 0
	for len(l.left) > 0 {
		l.pages = append(l.pages, &page{counters: l.counters, items: l.take(l.fill, plainLimit)})
		if len(l.left) == 0 && grown && !l.counters {
			l.spares()
		}
	}
}

// spares adds empty pages, so that the next growth changes no page count.
func (l *layout) spares() {
	if n := len(l.pages); n > spareAbove {
		for range (n + sparePer - 1) / sparePer {
			l.pages = append(l.pages, &page{})
		}
	}
}

// take takes up to n items, and no more than limit.
func (l *layout) take(n, limit int) []item {
	n = max(0, min(n, limit, len(l.left)))
	taken := l.left[:n:n]
	l.left = l.left[n:]
	return taken
}

// takePlain takes up to n items that are not advanced.
func (l *layout) takePlain(n int) []item {
	var taken, rest []item
	for _, it := range l.left {
		if len(taken) < n && !it.isAdvanced() {
			taken = append(taken, it)
		} else {
			rest = append(rest, it)
		}
	}
	l.left = rest
	return taken
}

// byRecord sorts records for a layout: the newest generation first, then by
// name.
func byRecord(a, b *record) int {
	return cmp.Or(cmp.Compare(b.generation, a.generation), strings.Compare(a.Name, b.Name))
}
