// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"math"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observed is what a plan starts from beside the desired pool.
type observed struct {
	// live has all slices of the pool.
	live []*record
	// floor is the highest generation that this process has seen or written.
	floor int64
	// accepted maps what was sent to what the API server made of it.
	accepted map[hash]hash
	// refused has content that the API server does not take.
	refused map[hash]bool
	// compact allows to compact the pool although nothing else has to change.
	compact bool
	// unanswered has the writes that may still be carried out, by name.
	unanswered map[string][]attempt
	// taken has names that slices of other pools have.
	taken map[string]bool

	owner  *metav1.OwnerReference // nil: none
	labels map[string]string
}

// plan is what has to be written, in order.
type plan struct {
	generation int64
	pages      []*page
	// phases are written one after the other, the pages within a phase in any
	// order and at the same time.
	phases [][]*page
	// deletes come last, one group after the other: a delete must never be what
	// completes a pool, since the scheduler doesn't wake up for it.
	deletes [][]*record
	// bump is set where the generation is a new one.
	bump bool
	// window is set where the pool can't be used from the first write (or
	// already) to the last.
	window bool
}

func (p *plan) empty() bool { return len(p.phases) == 0 && len(p.deletes) == 0 }

// writes is how many requests the plan takes.
func (p *plan) writes() int {
	n := 0
	for _, phase := range p.phases {
		n += len(phase)
	}
	for _, group := range p.deletes {
		n += len(group)
	}
	return n
}

func (p *plan) devices() (n int) {
	for _, page := range p.pages {
		if !page.counters {
			n += len(page.items)
		}
	}
	return n
}

// newest returns the live slices of the highest generation, and whether they
// are all that this generation has: only then consumers use the pool. uniform
// says that they agree on their number.
func newest(live []*record) (pages []*record, complete, uniform bool) {
	var top int64 = -1
	for _, rec := range live {
		if rec.generation > top {
			pages, top = nil, rec.generation
		}
		if rec.generation == top {
			pages = append(pages, rec)
		}
	}
	uniform = len(pages) > 0
	for _, rec := range pages {
		uniform = uniform && rec.count == pages[0].count
	}
	return pages, uniform && int64(len(pages)) == pages[0].count, uniform
}

// planRemove deletes the whole pool, the newest generation last: what is left
// after the first deletes must not be taken for a pool of its own.
func planRemove(live []*record) *plan {
	p := &plan{}
	top, _, _ := newest(live)
	var older []*record
	for _, rec := range live {
		if rec.generation < top[0].generation {
			older = append(older, rec)
		}
	}
	for _, group := range [][]*record{older, top} {
		if len(group) > 0 {
			p.deletes = append(p.deletes, group)
		}
	}
	return p
}

// newPlan decides what to write so that the pool becomes d.
func newPlan(d *desired, o *observed) *plan {
	p := makePlan(d, o, o.compact)
	if p.bump && !o.compact {
		// All pages have to be written anyway: fewer of them cost less.
		p = makePlan(d, o, true)
	}
	return p
}

func makePlan(d *desired, o *observed, compact bool) *plan {
	top, complete, uniform := newest(o.live)
	usable := candidates(d, o.live, top, complete)
	var count int
	switch {
	case complete:
		count = len(usable)
	case uniform:
		count = int(top[0].count)
	case len(top) > 0:
		count = 1 // they disagree; what holds nothing is of no use
	}
	assumed, really := o.assume(usable, d.selection.nodeName)
	p := &plan{pages: d.layOut(o, assumed, count, compact), generation: o.floor}
	for _, page := range p.pages {
		if rec, ok := really[page.rec]; ok {
			page.rec = rec
		}
		page.diff(d, o)
	}
	if len(top) > 0 {
		p.generation = max(p.generation, top[0].generation)
	}
	p.choose(d, o, top, complete, uniform)
	return p
}

// candidates returns the live slices that can be pages of the pool: those of
// the newest generation and, while that is incomplete, of earlier ones too.
func candidates(d *desired, live, top []*record, complete bool) []*record {
	if !complete {
		top = live
	}
	var usable []*record
	for _, rec := range top {
		if rec.nodeName == d.selection.nodeName && !rec.deleting() {
			usable = append(usable, rec)
		}
	}
	slices.SortFunc(usable, byRecord)
	return usable
}

// choose decides whether the pages can be written at the generation that is
// there, and in which order.
func (p *plan) choose(d *desired, o *observed, top []*record, complete, uniform bool) {
	inPlan := make(map[*record]bool, len(p.pages))
	var changed, behind []*page // of the newest generation, and not yet
	for _, page := range p.pages {
		inPlan[page.rec] = true
		switch {
		case page.rec == nil || page.rec.generation < p.generation:
			behind = append(behind, page)
		case page.content || page.metadata:
			changed = append(changed, page)
		}
	}
	surplus := slices.ContainsFunc(top, func(rec *record) bool { return !inPlan[rec] })
	var obsolete []*record
	for _, rec := range o.live {
		if !inPlan[rec] {
			obsolete = append(obsolete, rec)
		}
	}
	if len(obsolete) > 0 {
		slices.SortFunc(obsolete, byRecord)
		p.deletes = [][]*record{obsolete}
	}
	slices.SortStableFunc(changed, riskiestFirst)
	slices.SortStableFunc(behind, riskiestFirst)
	slices.SortStableFunc(behind, o.unansweredFirst)

	here := !p.collides(o) && uniform && !surplus && top[0].count == int64(len(p.pages)) && top[0].generation == p.generation
	switch {
	case here && complete && (len(changed) < 2 || p.independent(d, changed)):
		p.add(changed)
	case here && !complete && (len(o.unanswered) == 0 || p.independent(d, changed)):
		// A write without an answer may complete the pool at any time.
		p.window = true
		p.add(changed)
		p.add(behind)
	case p.generation == math.MaxInt64:
		// There is no later generation. Where there is no slice either, the
		// first one will do.
		*p = *planRemove(o.live)
	default:
		p.bump, p.window = true, len(p.pages) > 1
		p.generation = p.next(o)
		all := slices.Clone(p.pages)
		slices.SortStableFunc(all, riskiestFirst)
		slices.SortStableFunc(all, o.unansweredFirst)
		// The first write alone: if it is refused, the earlier generation is
		// still complete.
		p.add(all[:1])
		p.add(all[1:])
	}
}

func (p *plan) add(phase []*page) {
	if len(phase) > 0 {
		p.phases = append(p.phases, phase)
	}
}

// independent reports whether the pages can be changed one by one, each change
// being one that could have been asked for alone.
func (p *plan) independent(d *desired, changed []*page) bool {
	where := make(map[string]*record)
	heads := 0
	for _, page := range changed {
		if !page.content {
			continue
		}
		if d.atomic || page.counters || len(page.rec.sets) > 0 {
			return false
		}
		if page.rec.head != d.heads[page.kind()] {
			heads++
		}
		for _, li := range page.rec.devices {
			where[li.name] = page.rec
		}
	}
	if heads > 1 {
		return false // who can use the pool, or how, must not differ between pages
	}
	for _, page := range changed {
		for _, it := range page.items {
			if at, ok := where[it.name]; ok && at != page.rec && page.content {
				return false // it moves
			}
		}
	}
	return true
}

// riskiestFirst sorts pages so that those come first whose write may be
// refused, or that take something away.
func riskiestFirst(a, b *page) int {
	rank := func(p *page) int {
		switch {
		case p.rec == nil:
			return 0
		case p.restrictive:
			return 1
		case p.content:
			return 2
		}
		return 3
	}
	return rank(a) - rank(b)
}
