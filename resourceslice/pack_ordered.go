// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"slices"
	"sort"
	"strings"
)

// placeInOrder lays out an ordered pool: the pages, sorted by name, hold
// consecutive ranges of the items, so that the scheduler, which goes through
// slices by name and through devices by position, tries them in that order.
// The longest part of the live layout that is in order already stays where it
// is; the rest goes to where its neighbours are, and a page that is full then
// splits, as in a B-tree.
func (l *layout) placeInOrder(items []item) {
	slices.SortFunc(l.pages, func(a, b *page) int { return strings.Compare(a.name, b.name) })
	home := l.homes(items)
	for _, p := range l.pages {
		p.items = nil
	}
	existing := l.pages
	l.pages, l.left = nil, nil
	next := 0 // of existing, the first that is not in l.pages
	advance := func(to int) {
		for ; next <= to; next++ {
			l.pages = append(l.pages, existing[next])
		}
	}
	for i := 0; i < len(items); {
		if home[i] >= 0 {
			advance(home[i])
			last := l.pages[len(l.pages)-1]
			last.items = append(last.items, items[i])
			i++
			continue
		}
		end := i
		for end < len(items) && home[end] < 0 {
			end++
		}
		l.insert(items[i:end], i > 0 && end < len(items) && home[i-1] == home[end], func() { advance(next) }, next < len(existing))
		i = end
	}
	advance(len(existing) - 1)
	l.split()
	for ; l.create > 0; l.create-- {
		l.pages = append(l.pages, &page{})
	}
}

// insert adds items that have no page of their own. They get new pages where
// such have to be created anyway, unless they are in the middle of a page.
func (l *layout) insert(items []item, inside bool, openNext func(), isNext bool) {
	for !inside && l.create > 0 && len(items) > 0 {
		n := min(l.fill, len(items))
		l.pages = append(l.pages, &page{items: items[:n:n]})
		items = items[n:]
		l.create--
	}
	if len(items) == 0 {
		return
	}
	if len(l.pages) == 0 {
		if isNext {
			openNext()
		} else {
			l.pages = append(l.pages, &page{})
		}
	}
	last := l.pages[len(l.pages)-1]
	last.items = append(slices.Clip(last.items), items...)
}

// homes returns for each item the index of the page on which it stays, or -1.
// It is the longest sequence of items whose pages don't go back.
func (l *layout) homes(items []item) []int {
	pageOf := make(map[string]int, len(items))
	for i, p := range l.pages {
		for _, it := range p.items {
			pageOf[it.name] = i
		}
	}
	home := make([]int, len(items))
	before := make([]int, len(items)) // the item before this one in the sequence
	var ends []int                    // the item that ends the best sequence of each length
	for i := range items {
		before[i], home[i] = -1, -1
		at, ok := pageOf[items[i].name]
		if !ok {
			continue
		}
		home[i] = at
		length := sort.Search(len(ends), func(k int) bool { return home[ends[k]] > at })
		if length > 0 {
			before[i] = ends[length-1]
		}
		if length == len(ends) {
			ends = append(ends, i)
		} else {
			ends[length] = i
		}
	}
	stays := make([]bool, len(items))
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = before[i] {
			stays[i] = true
		}
	}
	for i := range home {
		if !stays[i] {
			home[i] = -1
		}
	}
	return home
}

// split divides pages that hold too much, evenly.
func (l *layout) split() {
	var pages []*page
	for _, p := range l.pages {
		pages = append(pages, p)
		if len(p.items) <= p.limit() {
			continue
		}
		all := p.items
		parts := (len(all) + l.fill - 1) / l.fill
		size := (len(all) + parts - 1) / parts
		if p.rec == nil {
			size = l.fill // nothing there yet: fill page after page
		}
		p.items = all[:size:size]
		for all = all[size:]; len(all) > 0; all = all[min(size, len(all)):] {
			n := min(size, len(all))
			pages = append(pages, &page{items: all[:n:n]})
		}
	}
	l.pages = pages
}

// nameInOrder names new pages so that they sort where they are. Where the
// names of others leave no room, all pages are made anew.
func (l *layout) nameInOrder(n namer) {
	last := ""
	for i, p := range l.pages {
		if p.rec != nil {
			if last = orderOf(p.name); last == "" && slices.ContainsFunc(l.pages, func(p *page) bool { return p.rec == nil }) {
				l.anew(n)
				return
			}
			continue
		}
		next := ""
		for _, q := range l.pages[i:] {
			if q.rec != nil {
				next = orderOf(q.name)
				break
			}
		}
		order := orderAfter(last)
		if next != "" && order >= next {
			order = orderBetween(last, next)
		}
		p.name, last = n.name(order), order
	}
}

func (l *layout) anew(n namer) {
	last := ""
	for _, p := range l.pages {
		p.rec, last = nil, orderAfter(last)
		p.name = n.name(last)
	}
}
