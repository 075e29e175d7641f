// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// key names an object within its kind.
type key struct{ namespace, name string }

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// item is one version of one object. It never changes, so it is shared without
// copies, and encoded once for all clients.
type item struct {
	key  key
	rv   uint64
	obj  runtime.Object // as stored, with group, version and kind
	node string         // the node of the object, if any

	// by is the manager that wrote this version, or unmanaged, and earlier
	// are the versions of other managers before it. They are not used if the
	// object is tracked, because its managedFields are exact.
	by      *metav1.ManagedFieldsEntry
	earlier []earlier
	tracked bool

	mu  sync.Mutex
	enc []encoding
}

type encoding struct {
	view  int
	media *media
	form  form
	bytes []byte
}

// form is what of an object is encoded.
type form int

const (
	whole   form = iota
	partial      // its metadata
	inList       // the object as an element of a list, which has no kind
)

func newItem(obj runtime.Object, rv uint64) *item {
	m := metaOf(obj)
	return &item{key: key{m.GetNamespace(), m.GetName()}, rv: rv, obj: obj}
}

// encoded returns the encoding of the item in view v and representation a. The
// caller must not change the bytes.
func (it *item) encoded(k *kind, v int, a accepted) []byte {
	if a.partial {
		return it.encodedAs(k, v, a.media, partial)
	}
	return it.encodedAs(k, v, a.media, whole)
}

// encodedAs returns the encoding of a form of the item. An object is encoded once for all
// clients that read it.
func (it *item) encodedAs(k *kind, v int, m *media, f form) []byte {
	it.mu.Lock()
	defer it.mu.Unlock()
	for _, e := range it.enc {
		if e.view == v && e.media == m && e.form == f {
			return e.bytes
		}
	}
	var b []byte
	switch f {
	case partial:
		b = m.encode(partialOf(it.obj))
	case whole:
		b = m.encode(k.convertTo(it.obj, v))
	case inList:
		obj := k.convertTo(it.obj, v)
		if !k.dynamic { // unstructured objects keep their kind
			obj = shallow(obj)
			obj.GetObjectKind().SetGroupVersionKind(noGVK)
		}
		b = m.element(obj)
	}
	it.enc = append(it.enc, encoding{v, m, f, b})
	return b
}

// event is one change, for watches that start in the past.
type event struct {
	kind *kind // for store.observe and the observers
	typ  watch.EventType
	rv   uint64
	at   time.Time
	cur  *item // the new state; of a deletion the last, with the deletion's resourceVersion
	prev *item // the state before, nil for a creation
}

// table holds all objects of one kind.
type table struct {
	kind      *kind
	items     map[key]*item
	log       []event // oldest first, at most Options.History
	forgotten uint64  // events up to this resourceVersion are no longer in log
	watchers  map[*watcher]struct{}
}

// sorted returns the items of one namespace, or all, in the order of keys.
func (t *table) sorted(namespace string) []*item { return sorted(t.items, namespace) }

// sortedAt returns the items of sorted as they were at rv. store.mu must be held.
func (t *table) sortedAt(rv uint64, namespace string) []*item {
	items, _ := t.at(rv)
	return sorted(items, namespace)
}

func sorted(items map[key]*item, namespace string) []*item {
	out := make([]*item, 0, len(items))
	for k, it := range items {
		if namespace == "" || k.namespace == namespace {
			out = append(out, it)
		}
	}
	slices.SortFunc(out, func(a, b *item) int { return a.key.compare(b.key) })
	return out
}

// store holds all objects and their history. mu guards it. Whoever changes objects
// holds writing too, from begin to commit, so that observers can read the state after
// each write. No function of a test is called with mu, except for that of Edit.
type store struct {
	writing   sync.Mutex // locked before mu
	mu        sync.Mutex
	observers []*observer
	changes   []event // of this write, for the observers

	rv       uint64
	tables   map[*kind]*table  // made when they are first used
	named    map[string]*table // of the special kinds, by resource
	history  int
	forgot   uint64          // the resourceVersion of the last Compact
	observe  func(event)     // is called with every change, with mu held
	emptying map[string]bool // namespaces that a timer is set for
}

// firstRV leaves room for resourceVersions that are older than the server.
const firstRV = 100

func newStore(history int) *store {
	st := &store{rv: firstRV, tables: map[*kind]*table{}, named: map[string]*table{}, history: history}
	for _, k := range special {
		st.named[k.resource] = st.table(k)
	}
	return st
}

// table returns the objects of a kind. st.mu must be held.
func (st *store) table(k *kind) *table {
	k = k.table()
	t := st.tables[k]
	if t == nil {
		t = &table{kind: k, items: map[key]*item{}, watchers: map[*watcher]struct{}{}, forgotten: st.forgot}
		st.tables[k] = t
	}
	return t
}

// begin locks the store for a write.
func (st *store) begin() {
	st.writing.Lock()
	st.mu.Lock()
}

// commit ends a write: it unlocks mu, reports the changes to the observers, and
// unlocks writing.
func (st *store) commit() {
	defer st.writing.Unlock()
	changes, observers := st.changes, st.observers
	st.changes = nil
	st.mu.Unlock()
	for _, ev := range changes {
		for _, o := range observers {
			o.f(ev.change())
		}
	}
}

func (st *store) next() uint64 {
	st.rv++
	return st.rv
}

func formatRV(rv uint64) string { return strconv.FormatUint(rv, 10) }

// put stores obj, which becomes immutable, as a new version. prev is the version
// before it, or nil for a creation. st.mu must be held.
func (st *store) put(t *table, obj runtime.Object, prev *item) *item {
	return st.putBy(unmanaged, t, obj, prev)
}

// write calls put for the write of a client. st.mu must be held.
func (st *store) write(w *write, t *table, obj runtime.Object, prev *item) *item {
	it := st.putBy(w.by, t, obj, prev)
	if w.applied || w.exact {
		it.tracked, it.earlier = true, nil
	}
	return it
}

func (st *store) putBy(by *metav1.ManagedFieldsEntry, t *table, obj runtime.Object, prev *item) *item {
	rv := st.next()
	metaOf(obj).SetResourceVersion(formatRV(rv))
	it := newItem(obj, rv)
	it.follows(prev, by)
	if t.kind.node != nil {
		it.node = t.kind.node(obj)
	}
	t.items[it.key] = it
	typ := watch.Modified
	if prev == nil {
		typ = watch.Added
	}
	st.publish(t, event{typ: typ, rv: rv, at: time.Now(), cur: it, prev: prev})
	return it
}

// remove deletes an object. The event has its last state, with the
// resourceVersion of the deletion. st.mu must be held.
func (st *store) remove(t *table, last *item) *item {
	rv := st.next()
	obj := shallow(last.obj)
	metaOf(obj).SetResourceVersion(formatRV(rv))
	it := newItem(obj, rv)
	delete(t.items, last.key)
	st.publish(t, event{typ: watch.Deleted, rv: rv, at: time.Now(), cur: it, prev: last})
	return it
}

func (st *store) publish(t *table, ev event) {
	t.log = append(t.log, ev)
	if n := len(t.log); n > 2*st.history {
		// Trimmed in bulk, so that a write costs no copying.
		t.forgotten = t.log[n-st.history-1].rv
		t.log = slices.Clone(t.log[n-st.history:])
	}
	for w := range t.watchers {
		w.offer(ev)
	}
	ev.kind = t.kind
	if len(st.observers) > 0 {
		st.changes = append(st.changes, ev)
	}
	if st.observe != nil {
		st.observe(ev)
	}
}

// at returns the objects as they were at rv, or at the oldest resourceVersion after it
// that is not forgotten. exact reports whether it is rv. The caller must not change
// items, and must hold store.mu as long as it uses them.
func (t *table) at(rv uint64) (items map[key]*item, exact bool) {
	if n := len(t.log); n == 0 || t.log[n-1].rv <= rv {
		return t.items, rv >= t.forgotten
	}
	items = maps.Clone(t.items)
	for _, ev := range slices.Backward(t.log) {
		if ev.rv <= rv {
			break
		}
		if ev.prev == nil {
			delete(items, ev.cur.key)
		} else {
			items[ev.cur.key] = ev.prev
		}
	}
	return items, rv >= t.forgotten
}

// since returns the events after rv. ok is false if some of them are forgotten.
// store.mu must be held.
func (t *table) since(rv uint64) (evs []event, ok bool) {
	if rv < t.forgotten {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(t.log, rv+1, func(e event, rv uint64) int { return cmp.Compare(e.rv, rv) })
	return t.log[i:], true
}

// before returns the resourceVersion before the last n changes, or before all that are
// known. st.mu must be held.
func (st *store) before(n int) uint64 {
	var rvs []uint64
	for _, t := range st.tables {
		for _, ev := range t.log[max(0, len(t.log)-n):] {
			rvs = append(rvs, ev.rv)
		}
	}
	if n <= 0 || len(rvs) == 0 {
		return st.rv
	}
	slices.Sort(rvs)
	return rvs[max(0, len(rvs)-n)] - 1
}

// forget drops all history: older resourceVersions are expired.
func (t *table) forget(rv uint64) {
	t.forgotten, t.log = rv, nil
}
