// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import "slices"

// diff fills in what differs between the page and its record.
func (p *page) diff(d *desired, o *observed) {
	if p.rec == nil {
		p.content = true
		return
	}
	p.metadata = !p.rec.hasLabels(o.labels) || o.owner != nil && !p.rec.ownedBy(o.owner)
	there := p.rec.devices
	if p.counters {
		there = p.rec.sets
	}
	p.content = p.differs(d, o)
	if !p.content || p.counters {
		return
	}
	wanted := make(map[string]*item, len(p.items))
	for i := range p.items {
		wanted[p.items[i].name] = &p.items[i]
	}
	for i := range there {
		it, ok := wanted[there[i].name]
		p.restrictive = p.restrictive || !ok || it.hash != there[i].hash && len(it.timesOfTaints()) > 0
	}
}

// differs reports whether the page's spec is not what the record has.
func (p *page) differs(d *desired, o *observed) bool {
	if p.rec == nil {
		return true
	}
	if head := d.heads[p.kind()]; head != p.rec.head && o.accepted[head] != p.rec.head {
		return true
	}
	there, other := p.rec.devices, p.rec.sets
	if p.counters {
		there, other = other, there
	}
	if len(there) != len(p.items) || len(other) > 0 {
		return true
	}
	var index map[string]int
	for i := range p.items {
		it, at := &p.items[i], i
		if there[i].name != it.name {
			if d.ordered && !p.counters {
				return true
			}
			if index == nil {
				index = indexOf(there)
			}
			var ok bool
			if at, ok = index[it.name]; !ok {
				return true
			}
		}
		if there[at].hash != it.hash && o.accepted[it.hash] != there[at].hash {
			return true
		}
		if p.otherTimes(it) {
			return true
		}
	}
	return false
}

func indexOf(items []liveItem) map[string]int {
	index := make(map[string]int, len(items))
	for i := range items {
		index[items[i].name] = i
	}
	return index
}

// otherTimes reports whether a taint was Set with another time than the one
// that is stored. A device may have the same taint twice.
func (p *page) otherTimes(it *item) bool {
	return slices.ContainsFunc(it.timesOfTaints(), func(t taintTime) bool {
		if t.added.IsZero() {
			return false
		}
		_, ok := p.rec.timeOf(t)
		return ok && !slices.ContainsFunc(p.rec.taints, func(live taintTime) bool { return sameTime(live, t) })
	})
}

func (r *record) hasLabels(labels map[string]string) bool {
	for k, v := range labels {
		if have, ok := r.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
