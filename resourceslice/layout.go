// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"maps"
	"slices"
)

// layOut puts the wanted items on pages. A pool that is half published, with
// slices that say how many they are to be, gets that number if it can be done:
// then what is missing can be added to what is there.
func (d *desired) layOut(o *observed, usable []*record, count int, compact bool) []*page {
	sets := d.setsOf(o)
	var withSets, withDevices []*record
	for _, rec := range usable {
		if len(rec.sets) > 0 && len(sets) > 0 {
			withSets = append(withSets, rec)
		} else {
			withDevices = append(withDevices, rec)
		}
	}
	sets, devices := d.substitute(o, sets, withSets, withDevices)
	generation := int64(0)
	if len(usable) > 0 {
		generation = usable[0].generation
	}
	dirty := func(p *page) bool {
		return p.rec == nil || p.rec.generation < generation || len(o.unanswered[p.name]) > 0 || p.differs(d, o)
	}

	counters := newLayout(sets, withSets, true)
	counters.shed()
	counters.place(dirty)
	for _, p := range counters.pages {
		p.counters = len(p.items) > 0
	}

	l := newLayout(devices, withDevices, false)
	l.match(count-len(counters.pages), len(devices))
	if needed := l.needed(len(devices)); compact && len(l.pages) >= needed+compactAbove && len(l.pages) > 2*needed {
		l.compact(needed + (needed+sparePer-1)/sparePer)
	}
	n := newNamer(d.id, d.selection.nodeName, d.taken(o))
	if d.ordered {
		l.placeInOrder(devices)
	} else {
		l.shed()
		l.place(dirty)
	}
	if len(l.pages) == 0 && len(counters.pages) == 0 {
		l.pages = []*page{{}} // a pool without devices is an empty slice
	}
	if d.ordered {
		l.nameInOrder(n)
	}
	pages := slices.Concat(counters.pages, l.pages)
	nameRest(pages, n, o.live)
	return pages
}

// match makes the number of pages count, if that is a sensible number: pages
// without anything wanted on them are kept only so far, and what is missing
// beyond them has to be created.
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

// needed is how few pages could hold the devices.
func (l *layout) needed(devices int) int { return max(1, (devices+l.fill-1)/l.fill) }

// taken returns the names that new pages can't have.
func (d *desired) taken(o *observed) map[string]bool {
	names := make(map[string]bool, len(o.live)+len(o.taken))
	maps.Copy(names, o.taken)
	for _, rec := range o.live {
		names[rec.Name] = true
	}
	return names
}

// nameRest names the pages that have no name, after all that there are.
func nameRest(pages []*page, n namer, live []*record) {
	last := ""
	for _, rec := range live {
		last = max(last, orderOf(rec.Name))
	}
	for _, p := range pages {
		last = max(last, orderOf(p.name))
	}
	for _, p := range pages {
		if p.name == "" {
			last = orderAfter(last)
			p.name = n.name(last)
		}
	}
}

// setsOf returns the counter sets without those that the API server drops.
func (d *desired) setsOf(o *observed) []item {
	dropped := func(it item) bool {
		stored, ok := o.accepted[it.hash]
		return ok && stored == hash{}
	}
	if !slices.ContainsFunc(d.sets, dropped) {
		return d.sets
	}
	return slices.DeleteFunc(slices.Clone(d.sets), dropped)
}

// substitute replaces what the API server has refused with what it has
// instead, or leaves it out where it has nothing.
func (d *desired) substitute(o *observed, wanted []item, withSets, withDevices []*record) (sets, devices []item) {
	if len(o.refused) == 0 {
		return wanted, d.devices
	}
	sets, replaced := keep(wanted, o.refused, withSets, func(r *record) []liveItem { return r.sets }, nil)
	devices, _ = keep(d.devices, o.refused, withDevices, func(r *record) []liveItem { return r.devices }, replaced)
	return sets, devices
}

// keep returns the items with what was refused, or consumes counters of what
// was refused, replaced by what is live. The names of those come with it.
func keep(items []item, refused map[hash]bool, live []*record, of func(*record) []liveItem, unusable map[string]bool) (kept []item, replaced map[string]bool) {
	there := make(map[string]liveItem)
	for _, rec := range live {
		for _, li := range of(rec) {
			if _, ok := there[li.name]; !ok {
				there[li.name] = li
			}
		}
	}
	replaced = make(map[string]bool)
	for _, it := range items {
		li, ok := there[it.name]
		lacks := slices.ContainsFunc(it.counterSets(), func(set string) bool { return unusable[set] })
		if !refused[it.hash] && !lacks || ok && li.hash == it.hash {
			kept = append(kept, it)
			continue
		}
		replaced[it.name] = true
		if ok {
			kept = append(kept, item{name: li.name, hash: li.hash, traits: li.traits})
		}
	}
	return kept, replaced
}
