// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubewright/kubewright/resourceslice/internal/core"
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
