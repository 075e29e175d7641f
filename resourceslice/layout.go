// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
)

const (
	// plainLimit and advancedLimit are how many devices a slice can hold,
	// without and with advanced ones among them.
	plainLimit    = resourcev1.ResourceSliceMaxDevices
	advancedLimit = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	counterLimit  = resourcev1.ResourceSliceMaxCounterSets

	// spareAbove is the number of pages above which a pool gets spare ones
	// when it grows: one for every sparePer pages.
	spareAbove = 4
	sparePer   = 8
	// compactAbove is how many pages too many a pool must have before it is
	// compacted.
	compactAbove = 8

	// orderDigits is the length of the hexadecimal order number at the start
	// of a name: the scheduler tries slices by name.
	orderDigits = 8
	// maxPageName keeps names valid as label values.
	maxPageName = 63
)

// page is a slice as it should be.
type page struct {
	rec      *record // the slice as it is; nil if it must be created
	name     string
	counters bool   // it holds counter sets, not devices
	items    []item // by name once the layout is done

	// The differences from rec, set by diff.
	content     bool // devices, counter sets or head
	metadata    bool // labels or owner
	restrictive bool // it takes something from Pods
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

// limit is how many items the page can hold as it is.
func (p *page) limit() int {
	switch {
	case p.counters:
		return counterLimit
	case slices.ContainsFunc(p.items, func(i item) bool { return i.isAdvanced() }):
		return advancedLimit
	}
	return plainLimit
}

// live returns the contents of the page on the API server.
func (p *page) live() []content {
	if p.rec == nil {
		return nil
	}
	return p.rec.contents(p.counters)
}

// newRestrictions returns the kinds of restrictions that the live slice doesn't
// have. An update never loses the other kinds, whatever features are off.
func (p *page) newRestrictions() restrictions {
	var devices, sets []content
	for i := range p.items {
		if p.counters {
			sets = append(sets, p.items[i].content)
		} else {
			devices = append(devices, p.items[i].content)
		}
	}
	kinds := restrictionsOf(devices, sets)
	if p.rec != nil {
		kinds &^= restrictionsOf(p.rec.devices, p.rec.sets)
	}
	return kinds
}

func (p *page) diff(d *desired, o *observed) {
	if p.content = p.differs(d, o); p.rec == nil {
		return
	}
	p.metadata = !p.rec.hasLabels(o.labels) || o.owner != nil && !p.rec.ownedBy(o.owner)
	if !p.content {
		return
	}
	wanted := make(map[string]*item, len(p.items))
	for i := range p.items {
		wanted[p.items[i].name] = &p.items[i]
	}
	for _, is := range p.live() {
		it, ok := wanted[is.name]
		p.restrictive = p.restrictive || !ok || it.hash != is.hash && len(it.taintList()) > 0
	}
}

// differs reports whether the spec of the page, except for generation and
// count, is not that of its record.
func (p *page) differs(d *desired, o *observed) bool {
	if p.rec == nil || !o.stored(d.heads[p.kind()], p.rec.head) || len(p.rec.devices)+len(p.rec.sets) != len(p.items) {
		return true
	}
	live := p.live()
	if len(live) != len(p.items) {
		return true // it holds the other kind
	}
	var index map[string]int // if the order differs
	for i := range p.items {
		it, at := &p.items[i], i
		if live[i].name != it.name {
			if index == nil {
				index = indexOf(live)
			}
			var ok bool
			if at, ok = index[it.name]; !ok {
				return true
			}
		}
		if !o.stored(it.hash, live[at].hash) || otherTimes(it.taintList(), live[at].taintList()) {
			return true
		}
	}
	return false
}

func indexOf(all []content) map[string]int {
	index := make(map[string]int, len(all))
	for i := range all {
		index[all[i].name] = i
	}
	return index
}

// otherTimes reports whether a taint was Set with another time than the stored
// one. A device may have the same taint twice.
func otherTimes(wanted, live []taint) bool {
	return slices.ContainsFunc(wanted, func(t taint) bool {
		return !t.added.IsZero() && slices.ContainsFunc(live, t.same) &&
			!slices.ContainsFunc(live, func(is taint) bool { return t.same(is) && t.added.Time.Equal(is.added.Time) })
	})
}

// layout assigns items to pages. An item stays on the page that has it if that
// is possible, so that a change of one device changes one page.
type layout struct {
	counters bool
	pages    []*page
	left     []item // without a page yet
	create   int    // how many pages must be created in any case
	fill     int    // how many items a new page gets
}

// layOut assigns the wanted items to pages, of which usable are there already.
// count is the number of pages to reach if that is sensible: that of a half
// published pool, which can then be completed, or the present one.
func (d *desired) layOut(o *observed, usable []*record, count int, compact bool) []*page {
	sets, devices := d.publishable(o)
	var withSets, withDevices []*record
	for _, rec := range usable {
		if len(rec.sets) > 0 && len(sets) > 0 {
			withSets = append(withSets, rec)
		} else {
			withDevices = append(withDevices, rec)
		}
	}
	var newest int64
	if len(usable) > 0 {
		newest = usable[0].generation
	}

	counters := newLayout(sets, withSets, true)
	counters.shed()
	counters.place(d, o, newest)
	for _, p := range counters.pages {
		p.counters = len(p.items) > 0
	}

	l := newLayout(devices, withDevices, false)
	l.match(count-len(counters.pages), len(devices))
	if needed := l.needed(len(devices)); compact && len(l.pages) >= needed+compactAbove && len(l.pages) > 2*needed {
		l.compact(needed + (needed+sparePer-1)/sparePer)
	}
	l.shed()
	l.place(d, o, newest)
	if len(l.pages) == 0 && len(counters.pages) == 0 {
		l.pages = []*page{{}} // a pool without devices is an empty slice
	}
	pages := slices.Concat(counters.pages, l.pages)
	for _, p := range pages {
		slices.SortFunc(p.items, byName)
	}
	d.name(pages, o)
	return pages
}

// publishable returns the wanted items without those that the API server
// refuses: these are replaced with their live version, or omitted. A consumer of
// a counter set that is not as wanted is omitted unless it is live as wanted.
func (d *desired) publishable(o *observed) (sets, devices []item) {
	if len(o.answers) == 0 {
		return d.sets, d.devices
	}
	other := make(map[string]bool) // counter sets that are not as wanted
	for _, it := range d.sets {
		instead, ok := o.instead(it)
		if a := o.answers[it.hash]; a != nil && a.refused {
			other[it.name] = true
		}
		if ok {
			sets = append(sets, instead)
		}
	}
	var live map[string]hash
	for _, it := range d.devices {
		instead, ok := o.instead(it)
		if ok && len(other) > 0 && slices.ContainsFunc(it.counterSets(), func(set string) bool { return other[set] }) {
			if live == nil {
				live = make(map[string]hash)
				for _, rec := range o.live {
					for _, is := range rec.devices {
						live[is.name] = is.hash
					}
				}
			}
			ok = live[it.name] == instead.hash
		}
		if ok {
			devices = append(devices, instead)
		}
	}
	return sets, devices
}

// newLayout returns a layout of the items that are on live pages, newest
// generation first: an item on two pages stays on the newer one.
func newLayout(items []item, live []*record, counters bool) *layout {
	l := &layout{counters: counters, fill: advancedLimit}
	switch {
	case counters:
		l.fill = counterLimit
	case len(items) <= plainLimit && !slices.ContainsFunc(items, func(i item) bool { return i.isAdvanced() }):
		l.fill = plainLimit // one page is always atomic
	}
	index := make(map[string]int, len(items))
	for i := range items {
		index[items[i].name] = i
	}
	placed := make([]bool, len(items))
	for _, rec := range live {
		p := &page{rec: rec, name: rec.Name, counters: counters}
		for _, is := range p.live() {
			if i, ok := index[is.name]; ok && !placed[i] {
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

// match makes the number of pages count if that is sensible. It keeps pages
// without wanted items only as far as needed for that, and counts the pages to
// create.
func (l *layout) match(count, devices int) {
	if count > max(len(l.pages), 2*l.needed(devices)+compactAbove) {
		count = 0
	}
	free := count
	for _, p := range l.pages {
		if len(p.items) > 0 {
			free--
		}
	}
	l.pages = slices.DeleteFunc(l.pages, func(p *page) bool {
		if len(p.items) > 0 {
			return false
		}
		free--
		return free < 0
	})
	l.create = max(0, count-len(l.pages))
}

// needed is the least number of pages that hold the devices.
func (l *layout) needed(devices int) int { return max(1, (devices+l.fill-1)/l.fill) }

// shed takes from pages the items beyond their limit, as when a taint makes 64
// devices the limit.
func (l *layout) shed() {
	for _, p := range l.pages {
		if limit := p.limit(); len(p.items) > limit {
			l.left = append(l.left, p.items[limit:]...)
			p.items = p.items[:limit:limit]
		}
	}
	slices.SortStableFunc(l.left, byName)
}

// compact empties the emptiest pages and drops them until keep are left.
func (l *layout) compact(keep int) {
	slices.SortStableFunc(l.pages, func(a, b *page) int { return len(b.items) - len(a.items) })
	for _, p := range l.pages[keep:] {
		l.left = append(l.left, p.items...)
	}
	l.pages = l.pages[:keep]
}

// place assigns the items that are left: first to pages that must be written in
// any case, then to those that must be created in any case, then to the others,
// and to more new pages if all are full. So the successor of a process that died
// while it filled these pages gives each page the same items.
func (l *layout) place(d *desired, o *observed, newest int64) {
	if len(l.left) == 0 && l.create == 0 {
		return
	}
	rank := make(map[*page]int, len(l.pages))
	for _, p := range l.pages {
		switch {
		case p.differs(d, o):
		case p.rec.generation < newest:
			rank[p] = 1
		default:
			rank[p] = 2
		}
	}
	order := slices.SortedStableFunc(slices.Values(l.pages), func(a, b *page) int {
		return cmp.Or(rank[a]-rank[b], len(b.items)-len(a.items))
	})
	others := slices.IndexFunc(order, func(p *page) bool { return rank[p] == 2 })
	if others < 0 {
		others = len(order)
	}
	l.stow(order[:others])
	for ; l.create > 0; l.create-- {
		l.pages = append(l.pages, &page{counters: l.counters, items: l.take(l.fill)})
	}
	l.stow(order[others:])
	grown := len(l.pages) > 0
	for len(l.left) > 0 {
		l.pages = append(l.pages, &page{counters: l.counters, items: l.take(l.fill)})
		if n := len(l.pages); len(l.left) == 0 && grown && !l.counters && n > spareAbove {
			for range (n + sparePer - 1) / sparePer {
				l.pages = append(l.pages, &page{})
			}
		}
	}
}

// stow assigns items to pages, in order, up to the fill of a new page. Beyond
// that, plain devices go to plain pages only, the emptiest first: a page of more
// than 64 devices must shed some as soon as one of them gets a taint.
func (l *layout) stow(pages []*page) {
	for _, p := range pages {
		p.items = append(p.items, l.take(min(l.fill, p.limit())-len(p.items))...)
	}
	if len(l.left) == 0 {
		return
	}
	var advanced []item
	l.left = slices.DeleteFunc(slices.Clone(l.left), func(it item) bool {
		if it.isAdvanced() {
			advanced = append(advanced, it)
		}
		return it.isAdvanced()
	})
	for _, p := range slices.SortedStableFunc(slices.Values(pages), func(a, b *page) int { return len(a.items) - len(b.items) }) {
		if len(l.left) > 0 && p.limit() == plainLimit {
			p.items = append(p.items, l.take(plainLimit-len(p.items))...)
		}
	}
	l.left = append(l.left, advanced...)
	slices.SortStableFunc(l.left, byName)
}

// take removes up to n items from those that are left.
func (l *layout) take(n int) []item {
	n = max(0, min(n, len(l.left)))
	taken := l.left[:n:n]
	l.left = l.left[n:]
	return taken
}

// name gives the new pages the lowest order numbers that are free, so that the
// successor of a process that died gives them the same.
func (d *desired) name(pages []*page, o *observed) {
	taken, used := make(map[string]bool), make(map[uint64]bool)
	for _, rec := range o.live {
		taken[rec.Name], used[orderOf(rec.Name)] = true, true
	}
	stem := d.id.Driver
	if d.selection.nodeName != "" {
		stem += "-" + d.selection.nodeName
	}
	order := uint64(1)
	for _, p := range pages {
		for salt := 0; p.name == ""; salt++ {
			for ; used[order]; order++ {
			}
			if name := pageName(d.id, strings.ToLower(stem), order, salt); !taken[name] && !o.taken[name] {
				p.name, used[order] = name, true
			}
		}
	}
}

// pageName returns the name of the page with an order number. Every process
// gives the same page the same name, so a create that is repeated is recognized.
func pageName(id PoolID, stem string, order uint64, salt int) string {
	number := fmt.Sprintf("%0*x", orderDigits, order)
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\n%s\n%s\n%d", id.Driver, id.Name, number, salt)
	suffix := fmt.Sprintf("%08x", h.Sum32())
	stem = strings.Trim(stem[:min(len(stem), maxPageName-orderDigits-len(suffix)-2)], "-.")
	return number + "-" + stem + "-" + suffix
}

// orderOf returns the order number at the start of a name, or 0 for a page that
// another publisher named.
func orderOf(name string) uint64 {
	number, _, ok := strings.Cut(name, "-")
	n, err := strconv.ParseUint(number, 16, 32)
	if !ok || err != nil || len(number) != orderDigits || n >= 1<<32-1<<16 {
		return 0
	}
	return n
}
