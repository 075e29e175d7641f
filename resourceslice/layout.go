// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// plainLimit and advancedLimit are the numbers of devices that a slice can hold,
	// without and with advanced ones among them.
	plainLimit    = resourcev1.ResourceSliceMaxDevices
	advancedLimit = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	counterLimit  = resourcev1.ResourceSliceMaxCounterSets

	// spareAbove is the number of pages above which a pool gets spare ones
	// when it grows: one for every sparePer pages.
	spareAbove = 4
	sparePer   = 8
	// compactAbove is the number of superfluous pages that a pool must have before it is
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
	rec   *record // the slice as it is; nil if it must be created
	name  string
	items []item // devices or counter sets, by place; by name once the layout is done

	change change // the difference from rec
}

// change is the greatest difference between a page and its record. The API
// server may refuse a write for the first three.
type change int

const (
	created     change = iota
	restrictive        // it takes something from Pods
	edited             // devices, counter sets or head
	relabelled         // labels, owner or the writer only
	unchanged
)

// isSets reports whether the page has counter sets, not devices.
func (p *page) isSets() bool { return len(p.items) > 0 && p.items[0].isSet }

// written returns the items in the order in which they are written.
func (p *page) written() []item { return slices.SortedStableFunc(slices.Values(p.items), byPlace) }

func (p *page) kind() int {
	switch {
	case p.isSets():
		return counterPage
	case slices.ContainsFunc(p.items, func(i item) bool { return len(i.consumes) > 0 }):
		return consumerPage
	}
	return plainPage
}

// limit returns the number of items that the page can hold as it is.
func (p *page) limit() int {
	switch {
	case p.isSets():
		return counterLimit
	case slices.ContainsFunc(p.items, func(i item) bool { return i.advanced }):
		return advancedLimit
	}
	return plainLimit
}

// newRestrictions returns the kinds of restrictions that the live slice doesn't
// have. An update never loses the other kinds, whatever features are off.
func (p *page) newRestrictions() restrictions {
	kinds := restrictionsOf(p.items)
	if p.rec != nil {
		kinds &^= restrictionsOf(p.rec.items)
	}
	return kinds
}

func (p *page) diff(d *desired, o *observed) change {
	switch {
	case p.rec == nil:
		return created
	case p.differs(d, o):
		if slices.ContainsFunc(p.rec.items, func(is item) bool {
			it := find(p.items, is.name)
			return it == nil || it.hash != is.hash && len(it.taints) > 0
		}) {
			return restrictive
		}
		return edited
	case !o.labels.Matches(labels.Set(p.rec.Labels)), p.rec.writer().Asks && p.rec.writer().IsSiblingOf(o.self), o.owner != nil && !p.rec.ownedBy(o.owner):
		return relabelled
	}
	return unchanged
}

// differs reports whether the spec of the page, except for generation and
// count, is not that of its record. The items of both are sorted.
func (p *page) differs(d *desired, o *observed) bool {
	return p.rec == nil || !o.stored(d.heads[p.kind()], p.rec.head) || !slices.EqualFunc(p.items, p.rec.items, func(it, is item) bool {
		return it.name == is.name && o.stored(it.hash, is.hash) && !otherTimes(it.taints, is.taints)
	}) || d.ordered && !slices.EqualFunc(p.written(), (&page{items: p.rec.items}).written(), func(it, is item) bool { return it.name == is.name })
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
	pages  []*page
	left   []item // without a page yet
	create int    // how many pages must be created in any case
	fill   int    // how many items a new page gets
}

// layOut assigns the wanted items to pages, of which usable are there already.
// count is the number of pages to reach if that is sensible: that of a half
// published pool, which can then be completed, or the present one.
func (d *desired) layOut(o *observed, usable []*record, count int, compact bool) []*page {
	sets, devices := d.publishable(o)
	var withSets, withDevices []*record
	for _, rec := range usable {
		if rec.has(true) && len(sets) > 0 {
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

	l := newLayout(devices, withDevices, false)
	l.match(count-len(counters.pages), len(devices))
	if needed := l.needed(len(devices)); compact && len(l.pages) >= needed+compactAbove && len(l.pages) > 2*needed {
		l.compact(needed + (needed+sparePer-1)/sparePer)
	}
	l.shed()
	if d.ordered {
		l.follow()
	}
	l.place(d, o, newest)
	if len(l.pages) == 0 && len(counters.pages) == 0 {
		l.pages = []*page{{}} // a pool without devices is an empty slice
	}
	d.name(slices.Concat(counters.pages, l.pages), o)
	if d.ordered && !l.inOrder() {
		for len(l.pages) < l.needed(len(devices)) {
			l.pages = append(l.pages, &page{})
		}
		d.name(slices.Concat(counters.pages, l.pages), o)
		l.deal(devices)
	}
	pages := slices.Concat(counters.pages, l.pages)
	for _, p := range pages {
		slices.SortFunc(p.items, byName)
	}
	return pages
}

// publishable returns the wanted items without those that the API server
// refuses: these are replaced with their live version, or omitted. A consumer of
// a counter set that is not as wanted is omitted unless it is live as wanted. A
// device that consumes a counter that is not published is always omitted, because it
// makes the whole pool invalid.
func (d *desired) publishable(o *observed) (sets, devices []item) {
	if len(o.answers) == 0 {
		return d.sets, d.devices
	}
	other := make(map[string]bool)                             // counter sets that are not as wanted
	counters := make(map[string]map[string]resourcev1.Counter) // by set
	for _, it := range d.sets {
		instead, ok := o.instead(it)
		if o.answer(it.hash).omits() {
			other[it.name] = true
		}
		if ok {
			sets = append(sets, instead)
		}
		// A set that the API server dropped, but did not refuse, counts: the devices
		// are published without it, see Config.PublishUnrestricted.
		var set resourcev1.CounterSet
		_ = set.Unmarshal([]byte(instead.encoded)) // of an own encoding, or empty
		counters[it.name] = set.Counters
	}
	for _, it := range d.devices {
		instead, ok := o.instead(it)
		if ok && len(other) > 0 && slices.ContainsFunc(it.consumes, func(set string) bool { return other[set] }) {
			ok = slices.ContainsFunc(o.live, func(rec *record) bool { return cmp.Or(find(rec.items, it.name), noItem).hash == instead.hash })
		}
		if ok && instead.finds(counters) {
			instead.at = it.at
			devices = append(devices, instead)
		}
	}
	return sets, devices
}

// finds reports whether counters has, by set, all that the device consumes.
func (it *item) finds(counters map[string]map[string]resourcev1.Counter) bool {
	if len(it.consumes) == 0 {
		return true
	}
	var device resourcev1.Device
	_ = device.Unmarshal([]byte(it.encoded)) // an own encoding
	for _, consumed := range device.ConsumesCounters {
		for name := range consumed.Counters {
			if _, ok := counters[consumed.CounterSet][name]; !ok {
				return false
			}
		}
	}
	return true
}

// newLayout returns a layout of the items that are on live pages, newest
// generation first: an item on two pages stays on the newer one.
func newLayout(items []item, live []*record, counters bool) *layout {
	l := &layout{fill: advancedLimit}
	switch {
	case counters:
		l.fill = counterLimit
	case len(items) <= plainLimit && !slices.ContainsFunc(items, func(i item) bool { return i.advanced }):
		l.fill = plainLimit // one page is always atomic
	}
	placed := make(map[string]bool, len(items))
	for _, rec := range live {
		p := &page{rec: rec, name: rec.Name}
		for i := range rec.items {
			if it := find(items, rec.items[i].name); it != nil && !placed[it.name] {
				placed[it.name] = true
				p.items = append(p.items, *it)
			}
		}
		l.pages = append(l.pages, p)
	}
	for _, p := range l.pages {
		slices.SortStableFunc(p.items, byPlace)
	}
	for i := range items {
		if !placed[items[i].name] {
			l.left = append(l.left, items[i])
		}
	}
	return l
}

// follow assigns items to the pages of their neighbors in an ordered pool, as long as
// these have room.
func (l *layout) follow() {
	type neighbor struct {
		at   int32
		page *page
	}
	var all []neighbor
	for _, p := range l.pages {
		for i := range p.items {
			all = append(all, neighbor{p.items[i].at, p})
		}
	}
	slices.SortFunc(all, func(a, b neighbor) int { return cmp.Compare(a.at, b.at) })
	next := 0
	l.left = slices.DeleteFunc(l.left, func(it item) bool {
		for next < len(all) && all[next].at < it.at {
			next++
		}
		for _, n := range all[max(0, next-1):min(len(all), next+1)] {
			grown := page{items: append(slices.Clone(n.page.items), it)}
			if len(grown.items) <= grown.limit() {
				n.page.items = grown.items
				return true
			}
		}
		return false
	})
}

// inOrder sorts the pages by name and reports whether the scheduler tries their items
// in the caller's order.
func (l *layout) inOrder() bool {
	slices.SortFunc(l.pages, func(a, b *page) int { return strings.Compare(a.name, b.name) })
	last := int32(-1)
	for _, p := range l.pages {
		for _, it := range p.written() {
			if it.at < last {
				return false
			}
			last = it.at
		}
	}
	return true
}

// deal assigns all items, by place, to the pages, by name.
func (l *layout) deal(items []item) {
	slices.SortFunc(l.pages, func(a, b *page) int { return strings.Compare(a.name, b.name) })
	l.left = slices.SortedFunc(slices.Values(items), byPlace)
	for _, p := range l.pages {
		p.items = l.take(l.fill)
	}
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
// devices the limit. Then it sorts those that are left, by place.
func (l *layout) shed() {
	for _, p := range l.pages {
		if limit := p.limit(); len(p.items) > limit {
			l.left = append(l.left, p.items[limit:]...)
			p.items = p.items[:limit:limit]
		}
	}
	slices.SortStableFunc(l.left, byPlace)
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
		l.pages = append(l.pages, &page{items: l.take(l.fill)})
	}
	l.stow(order[others:])
	grown := len(l.pages) > 0
	for len(l.left) > 0 {
		l.pages = append(l.pages, &page{items: l.take(l.fill)})
		if n := len(l.pages); len(l.left) == 0 && grown && n > spareAbove {
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
		if it.advanced {
			advanced = append(advanced, it)
		}
		return it.advanced
	})
	for _, p := range slices.SortedStableFunc(slices.Values(pages), func(a, b *page) int { return len(a.items) - len(b.items) }) {
		if len(l.left) > 0 && p.limit() == plainLimit {
			p.items = append(p.items, l.take(plainLimit-len(p.items))...)
		}
	}
	l.left = append(l.left, advanced...)
	slices.SortStableFunc(l.left, byPlace)
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
	taken := make(map[string]bool)
	for _, rec := range o.live {
		taken[rec.Name] = true
	}
	for _, p := range pages {
		taken[p.name] = true
	}
	stem := d.id.Driver
	if d.nodeName != "" {
		stem += "-" + d.nodeName
	}
	order := 0
	for _, p := range pages {
		for p.name == "" {
			order++
			if name := pageName(d.id, strings.ToLower(stem), order); !taken[name] && !o.taken[name] {
				p.name, taken[name] = name, true
			}
		}
	}
}

// pageName returns the name of the page with an order number. Every process
// gives the same page the same name, so a create that is repeated is recognized.
func pageName(id PoolID, stem string, order int) string {
	number := fmt.Sprintf("%0*x", orderDigits, order)
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\n%s\n%s", id.Driver, id.Name, number)
	suffix := fmt.Sprintf("%08x", h.Sum32())
	stem = strings.Trim(stem[:min(len(stem), maxPageName-orderDigits-len(suffix)-2)], "-.")
	return number + "-" + stem + "-" + suffix
}
