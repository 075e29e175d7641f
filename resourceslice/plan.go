// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	core "github.com/kubewright/kubewright/resourceslice/internal/pool"
)

// planAnnotation has the digest of the plan that wrote a slice, if the pool was
// incomplete for the time of that plan. Another process resumes the same plan only.
const planAnnotation = "resourceslice.kubewright.dev/plan"

// instanceAnnotation has the instance that wrote a slice.
const instanceAnnotation = "resourceslice.kubewright.dev/instance"

// standing is what the API server made of content.
type standing int

const (
	altered  standing = iota // it added something: counts as stored
	partial                  // it dropped a field: counts as stored
	withheld                 // it dropped a restriction: the item is left out
	suspect                  // it refused a slice with the item and named none: the item is left out
	rejected                 // it refused the item, which is left out
)

// answer is the API server's answer about content that it did not store as sent.
type answer struct {
	standing standing
	// instead is the live version of suspect or rejected content, nil if there is none.
	instead *item
	// stored is the hash of the stored content, 0 for none. Not for suspect or rejected.
	stored hash
	// err is an *InvalidError or a *DroppedFieldsError, nil for altered. Content with an
	// error is sent again after retryFaults.
	err error
	at  time.Time
	// head is set if the content is the head of slices. Without this answer all pages
	// would be written again.
	head bool
	// doubted is set when the answer is old and a dry run must confirm it: of a head,
	// which is still taken as stored, and of a withheld item, which is planned again.
	doubted bool
}

// omits reports whether the item is left out, or its live version published.
func (a *answer) omits() bool { return a != nil && a.standing >= withheld }

// memory is what a process remembers of a pool from one plan to the next.
type memory struct {
	// floor is the highest generation that this process has seen or written. No
	// live slice is newer.
	floor int64
	// ours is the generation that this process has written, or has seen
	// complete: no other process can have a write under way that completes it.
	ours int64
	// answers has the API server's answers, by the hash of the content as sent.
	answers map[hash]*answer
	// taken has names that slices of other pools have.
	taken map[string]bool
}

// observed has the facts that a plan starts from, except for the desired pool.
type observed struct {
	*memory
	// live has all slices of the pool.
	live []*record
	// compact allows to compact the pool although nothing else must change.
	compact bool

	self   core.Instance
	owner  *metav1.OwnerReference // nil: none
	labels labels.ValidatedSetSelector
}

// answer returns what the API server made of content, or nil if that is not known or must
// be asked for again.
func (o *observed) answer(sent hash) *answer {
	if a := o.answers[sent]; a != nil && (a.head || !a.doubted) {
		return a
	}
	return nil
}

// stored reports whether live is the stored form of wanted.
func (o *observed) stored(wanted, live hash) bool {
	if wanted == live {
		return true
	}
	a := o.answer(wanted)
	return a != nil && !a.omits() && a.stored == live
}

// instead returns the item to publish for it, or false for none.
func (o *observed) instead(it item) (item, bool) {
	switch a := o.answer(it.hash); {
	case a == nil:
		return it, true
	case !a.omits():
		return it, a.stored != 0 // the API server knows no such thing
	case a.instead == nil || o.answers[a.instead.hash].omits():
		return item{}, false
	default:
		return *a.instead, true
	}
}

// outcome is the kind of a plan.
type outcome int

const (
	// inPlace writes pages of a complete pool, each on its own, or only deletes.
	inPlace outcome = iota
	// fillUp completes the newest generation.
	fillUp
	// newGeneration writes all pages with the next generation.
	newGeneration
)

// plan has the writes that make a pool as desired, in order.
type plan struct {
	outcome    outcome
	generation int64
	pages      []*page
	digest     string // of the pages, if the plan has a window
	// phases are written one after the other. The pages of a phase may be
	// written in any order and at the same time.
	phases [][]*page
	// deletes come last, one group after the other. A delete must never complete
	// a pool, because the scheduler doesn't wake up for it.
	deletes [][]*record
}

func (p *plan) empty() bool { return len(p.phases) == 0 && len(p.deletes) == 0 }

// isReply reports whether the plan changes neither devices nor the head of a slice.
func (p *plan) isReply() bool {
	return len(p.deletes) == 0 && !slices.ContainsFunc(p.phases, func(phase []*page) bool {
		return slices.ContainsFunc(phase, func(page *page) bool { return page.change < relabelled })
	})
}

// window reports whether the pool is incomplete from the first write to the
// last.
func (p *plan) window() bool {
	return p.outcome == fillUp || p.outcome == newGeneration && len(p.pages) > 1
}

func (p *plan) devices() (n int) {
	for _, page := range p.pages {
		if !page.isSets() {
			n += len(page.items)
		}
	}
	return n
}

// newest returns the live slices of the highest generation. uniform reports
// whether they agree on their number, complete whether they also are that many:
// only then do consumers use the pool.
func newest(live []*record) (top []*record, complete, uniform bool) {
	for _, rec := range live {
		if len(top) > 0 && rec.generation > top[0].generation {
			top = nil
		}
		if len(top) == 0 || rec.generation == top[0].generation {
			top = append(top, rec)
		}
	}
	uniform = len(top) > 0
	for _, rec := range top {
		uniform = uniform && rec.count == top[0].count
	}
	return top, uniform && int64(len(top)) == top[0].count, uniform
}

// planRemoval deletes the whole pool, the newest generation last: older slices
// must not pass for a pool after the first deletes.
func planRemoval(live []*record) *plan {
	p := &plan{}
	if top, _, _ := newest(live); len(top) > 0 {
		older := slices.DeleteFunc(slices.Clone(live), func(rec *record) bool { return rec.generation == top[0].generation })
		p.deletes = [][]*record{older, top}
	}
	return p
}

// newPlan returns the plan that makes the pool d.
func newPlan(d *desired, o *observed) *plan {
	p := makePlan(d, o, o.compact)
	if p.outcome == newGeneration && !o.compact {
		// All pages are written anyway; fewer of them cost less.
		p = makePlan(d, o, true)
	}
	if p.window() {
		p.digest = p.sum(d)
	}
	return p
}

func makePlan(d *desired, o *observed, compact bool) *plan {
	top, complete, uniform := newest(o.live)
	var usable []*record
	from := top
	if !complete {
		from = o.live
	}
	for _, rec := range from {
		if rec.nodeName == d.nodeName && !rec.deleting() {
			usable = append(usable, rec)
		}
	}
	slices.SortFunc(usable, byRecord)
	count := 0
	switch {
	case complete:
		count = len(usable)
	case uniform:
		count = int(top[0].count)
	}
	p := &plan{pages: d.layOut(o, usable, count, compact), generation: o.floor}
	for _, page := range p.pages {
		page.change = page.diff(d, o)
	}
	p.choose(d, o, top, complete, uniform)
	return p
}

// choose decides whether the pages can be written at the newest generation, and
// in which order.
func (p *plan) choose(d *desired, o *observed, top []*record, complete, uniform bool) {
	planned := make(map[*record]bool, len(p.pages))
	var changed, behind []*page // of the newest generation, and of none or an older one
	for _, page := range p.pages {
		planned[page.rec] = true
		switch {
		case page.rec == nil || page.rec.generation < p.generation:
			behind = append(behind, page)
		case page.change != unchanged:
			changed = append(changed, page)
		}
	}
	isObsolete := func(rec *record) bool { return !planned[rec] }
	if obsolete := slices.DeleteFunc(slices.Clone(o.live), func(rec *record) bool { return planned[rec] }); len(obsolete) > 0 {
		p.deletes = [][]*record{obsolete}
	}
	slices.SortStableFunc(changed, riskiestFirst)
	slices.SortStableFunc(behind, riskiestFirst)

	sameGeneration := uniform && top[0].count == int64(len(p.pages)) && top[0].generation == p.generation && !slices.ContainsFunc(top, isObsolete)
	switch {
	case sameGeneration && complete && (len(changed) < 2 || independent(d, changed)):
		p.add(changed)
	case sameGeneration && !complete && (o.ours == p.generation || p.resumes(d, top)):
		p.outcome = fillUp
		p.add(changed)
		p.add(behind)
	case p.generation == math.MaxInt64:
		// There is no later generation. Without slices the first one will do.
		*p = *planRemoval(o.live)
	default:
		p.outcome, p.generation = newGeneration, p.generation+1
		all := slices.Clone(p.pages)
		slices.SortStableFunc(all, riskiestFirst)
		// The first write goes alone: if it is refused, the earlier generation
		// is still complete.
		p.add(all[:1])
		p.add(all[1:])
	}
}

// resumes reports whether top was written by a plan with the same pages. Then a
// late write of a dead process does no harm, because it has the content that its
// successor wants there.
func (p *plan) resumes(d *desired, top []*record) bool {
	digest := p.sum(d)
	return !slices.ContainsFunc(top, func(rec *record) bool { return rec.Annotations[planAnnotation] != digest })
}

// sum returns a digest of the names and contents of all pages. Unlike a hash, it
// is the same in all processes.
func (p *plan) sum(d *desired) string {
	h := fnv.New64a()
	add := func(data []byte) {
		h.Write(binary.AppendUvarint(nil, uint64(len(data))))
		h.Write(data)
	}
	for _, page := range slices.SortedFunc(slices.Values(p.pages), func(a, b *page) int { return strings.Compare(a.name, b.name) }) {
		spec := d.spec(page.kind())
		add([]byte(page.name))
		add(encode(&spec))
		items := page.items
		if d.ordered {
			items = page.written()
		}
		for i := range items {
			add([]byte(items[i].encoded))
		}
	}
	return strconv.FormatUint(h.Sum64(), 36)
}

func (p *plan) add(phase []*page) {
	if len(phase) > 0 {
		p.phases = append(p.phases, phase)
	}
}

// independent reports whether the pages can be changed one by one, each change
// being one that a caller could have asked for alone.
func independent(d *desired, changed []*page) bool {
	at := make(map[string]*record)
	heads := 0
	for _, page := range changed {
		if page.change > edited {
			continue
		}
		if page.isSets() || page.rec.has(true) {
			return false
		}
		if page.rec.head != d.heads[page.kind()] {
			heads++
		}
		for _, is := range page.rec.items {
			at[is.name] = page.rec
		}
	}
	if heads > 1 {
		return false // pages must not disagree on who can use the pool, or how
	}
	for _, page := range changed {
		for _, it := range page.items {
			if rec, ok := at[it.name]; ok && rec != page.rec && page.change <= edited {
				return false // the device moves
			}
		}
	}
	return true
}

// riskiestFirst sorts pages so that those come first whose write may be
// refused, or that take something from Pods.
func riskiestFirst(a, b *page) int { return cmp.Compare(a.change, b.change) }
