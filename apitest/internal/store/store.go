// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package store

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

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/rules"
)

// Key names an object within its kind.
type Key struct{ Namespace, Name string }

// Compare orders keys by namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// Item is one version of one object. It never changes, so it is shared without
// copies, and encoded once for all clients.
type Item struct {
	Key  Key
	RV   uint64
	Obj  runtime.Object // as stored, with group, version and kind
	Node string         // the node of the object, if any

	// By is the manager that wrote this version, or unmanaged, and earlier
	// are the versions of other managers before it. They are not used if the
	// object is tracked, because its managedFields are exact.
	By      *metav1.ManagedFieldsEntry
	Earlier []Earlier
	Tracked bool

	mu    sync.Mutex
	enc   []encoding
	typed typed
}

// typed is an object in the Go type of a kind, and of a test.
type typed struct {
	kind *rules.Kind
	view int
	obj  runtime.Object
}

type encoding struct {
	view  int
	media *codec.Media
	form  form
	bytes []byte
}

// form is what of an object is encoded.
type form int

const (
	whole   form = iota
	partial      // its metadata
	InList       // the object as an element of a list, which has no kind
)

// NewItem returns a version of an object.
func NewItem(obj runtime.Object, rv uint64) *Item {
	m := codec.MetaOf(obj)
	return &Item{Key: Key{m.GetNamespace(), m.GetName()}, RV: rv, Obj: obj}
}

// Encoded returns the encoding of the item in view v and representation a. The
// caller must not change the bytes.
func (it *Item) Encoded(k *rules.Kind, v int, a codec.Accepted) []byte {
	if a.Partial {
		return it.EncodedAs(k, v, a.Media, partial)
	}
	return it.EncodedAs(k, v, a.Media, whole)
}

// EncodedAs returns the encoding of a form of the item. An object is encoded once for all
// clients that read it.
func (it *Item) EncodedAs(k *rules.Kind, v int, m *codec.Media, f form) []byte {
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
		b = m.Bytes(codec.PartialOf(it.Obj))
	case whole:
		b = m.Bytes(k.ConvertTo(it.Obj, v))
	case InList:
		obj := k.ConvertTo(it.Obj, v)
		if !k.Dynamic { // unstructured objects keep their kind
			obj = codec.Shallow(obj)
			obj.GetObjectKind().SetGroupVersionKind(codec.NoGVK)
		}
		b = m.Element(obj)
	}
	it.enc = append(it.enc, encoding{v, m, f, b})
	return b
}

// Into returns a copy of the object in view v and the Go type of k. An object of a dynamic
// kind is converted once, because tests and explorations read each version many times.
func (it *Item) Into(k *rules.Kind, v int) runtime.Object {
	if k.GoType == nil {
		return k.ConvertTo(it.Obj, v).DeepCopyObject()
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.typed.kind != k || it.typed.view != v {
		it.typed = typed{k, v, k.Typed(k.ConvertTo(it.Obj, v))}
	}
	return it.typed.obj.DeepCopyObject()
}

// Event is one change, for watches that start in the past.
type Event struct {
	Kind *rules.Kind // for store.observe and the observers
	Typ  watch.EventType
	RV   uint64
	At   time.Time
	Cur  *Item // the new state; of a deletion the last, with the deletion's resourceVersion
	Prev *Item // the state before, nil for a creation
}

// Watcher receives the changes of a table, with the store locked.
type Watcher interface{ Offer(ev Event) }

// Table holds all objects of one kind.
type Table struct {
	Kind      *rules.Kind
	Items     map[Key]*Item
	log       []Event // oldest first, at most Options.History
	Forgotten uint64  // events up to this resourceVersion are no longer in log
	Watchers  map[Watcher]struct{}
}

// Sorted returns the items of one namespace, or all, in the order of keys.
func (t *Table) Sorted(namespace string) []*Item { return Sorted(t.Items, namespace) }

// SortedAt returns the items of sorted as they were at rv. The store must be locked.
func (t *Table) SortedAt(rv uint64, namespace string) []*Item {
	items, _ := t.At(rv)
	return Sorted(items, namespace)
}

// Sorted returns the items of one namespace, or all, in the order of keys.
func Sorted(items map[Key]*Item, namespace string) []*Item {
	out := make([]*Item, 0, len(items))
	for k, it := range items {
		if namespace == "" || k.Namespace == namespace {
			out = append(out, it)
		}
	}
	slices.SortFunc(out, func(a, b *Item) int { return a.Key.Compare(b.Key) })
	return out
}

// Store holds all objects and their history. mu guards it. Whoever changes objects
// holds writing too, from begin to commit, so that observers can read the state after
// each write. No function of a test is called with mu, except for that of Edit.
type Store struct {
	writing   sync.Mutex // locked before mu
	mu        sync.Mutex
	observers []*observer
	changes   []Event // of this write, for the observers

	RV       uint64
	Tables   map[*rules.Kind]*Table // made when they are first used
	Named    map[string]*Table      // of the special kinds, by resource
	history  int
	Forgot   uint64          // the resourceVersion of the last Compact
	Observe  func(Event)     // is called with every change, with mu held
	Emptying map[string]bool // namespaces that a timer is set for
}

// observer is one function that is called with each change.
type observer struct{ f func(Event) }

// Observing adds an observer until remove is called.
func (st *Store) Observing(f func(Event)) (remove func()) {
	o := &observer{f}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.observers = append(slices.Clone(st.observers), o)
	return func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.observers = slices.DeleteFunc(slices.Clone(st.observers), func(x *observer) bool { return x == o })
	}
}

// firstRV leaves room for resourceVersions that are older than the server.
const firstRV = 100

// New returns a store that remembers at least history changes of each kind. Its first
// resourceVersion depends on seed.
func New(history int, seed uint64) *Store {
	st := &Store{RV: firstRV + seed%1000*1000, Tables: map[*rules.Kind]*Table{}, Named: map[string]*Table{}, history: history}
	for _, k := range rules.Special {
		st.Named[k.Resource] = st.Table(k)
	}
	return st
}

// Table returns the objects of a kind. The store must be locked.
func (st *Store) Table(k *rules.Kind) *Table {
	k = k.Table()
	t := st.Tables[k]
	if t == nil {
		t = &Table{Kind: k, Items: map[Key]*Item{}, Watchers: map[Watcher]struct{}{}, Forgotten: st.Forgot}
		st.Tables[k] = t
	}
	return t
}

// Lock locks the store for a read.
func (st *Store) Lock() { st.mu.Lock() }

// Unlock ends a read.
func (st *Store) Unlock() { st.mu.Unlock() }

// Begin locks the store for a write.
func (st *Store) Begin() {
	st.writing.Lock()
	st.mu.Lock()
}

// Commit ends a write: it unlocks mu, reports the changes to the observers, and
// unlocks writing.
func (st *Store) Commit() {
	defer st.writing.Unlock()
	changes, observers := st.changes, st.observers
	st.changes = nil
	st.mu.Unlock()
	for _, ev := range changes {
		for _, o := range observers {
			o.f(ev)
		}
	}
}

// Next returns a new resourceVersion. The store must be locked.
func (st *Store) Next() uint64 {
	st.RV++
	return st.RV
}

// FormatRV returns a resourceVersion as objects have it.
func FormatRV(rv uint64) string { return strconv.FormatUint(rv, 10) }

// Put stores obj, which becomes immutable, as a new version. prev is the version
// before it, or nil for a creation. The store must be locked.
func (st *Store) Put(t *Table, obj runtime.Object, prev *Item) *Item {
	return st.putBy(Unmanaged, t, obj, prev)
}

// Write calls put for the write of the manager by, with exact managedFields or not.
// The store must be locked.
func (st *Store) Write(by *metav1.ManagedFieldsEntry, exact bool, t *Table, obj runtime.Object, prev *Item) *Item {
	it := st.putBy(by, t, obj, prev)
	if exact {
		it.Tracked, it.Earlier = true, nil
	}
	return it
}

func (st *Store) putBy(by *metav1.ManagedFieldsEntry, t *Table, obj runtime.Object, prev *Item) *Item {
	rv := st.Next()
	codec.MetaOf(obj).SetResourceVersion(FormatRV(rv))
	it := NewItem(obj, rv)
	it.follows(prev, by)
	if t.Kind.Node != nil {
		it.Node = t.Kind.Node(obj)
	}
	t.Items[it.Key] = it
	typ := watch.Modified
	if prev == nil {
		typ = watch.Added
	}
	st.publish(t, Event{Typ: typ, RV: rv, At: time.Now(), Cur: it, Prev: prev})
	return it
}

// Remove deletes an object. The event has its last state, with the
// resourceVersion of the deletion. The store must be locked.
func (st *Store) Remove(t *Table, last *Item) *Item {
	rv := st.Next()
	obj := codec.Shallow(last.Obj)
	codec.MetaOf(obj).SetResourceVersion(FormatRV(rv))
	it := NewItem(obj, rv)
	delete(t.Items, last.Key)
	st.publish(t, Event{Typ: watch.Deleted, RV: rv, At: time.Now(), Cur: it, Prev: last})
	return it
}

func (st *Store) publish(t *Table, ev Event) {
	t.log = append(t.log, ev)
	if n := len(t.log); n > 2*st.history {
		// Trimmed in bulk, so that a write costs no copying.
		t.Forgotten = t.log[n-st.history-1].RV
		t.log = slices.Clone(t.log[n-st.history:])
	}
	for w := range t.Watchers {
		w.Offer(ev)
	}
	ev.Kind = t.Kind
	if len(st.observers) > 0 {
		st.changes = append(st.changes, ev)
	}
	if st.Observe != nil {
		st.Observe(ev)
	}
}

// At returns the objects as they were at rv, or at the oldest resourceVersion after it
// that is not forgotten. exact reports whether it is rv. The caller must not change
// items, and must lock the store as long as it uses them.
func (t *Table) At(rv uint64) (items map[Key]*Item, exact bool) {
	if n := len(t.log); n == 0 || t.log[n-1].RV <= rv {
		return t.Items, rv >= t.Forgotten
	}
	items = maps.Clone(t.Items)
	for _, ev := range slices.Backward(t.log) {
		if ev.RV <= rv {
			break
		}
		if ev.Prev == nil {
			delete(items, ev.Cur.Key)
		} else {
			items[ev.Cur.Key] = ev.Prev
		}
	}
	return items, rv >= t.Forgotten
}

// Since returns the events after rv. ok is false if some of them are forgotten.
// The store must be locked.
func (t *Table) Since(rv uint64) (evs []Event, ok bool) {
	if rv < t.Forgotten {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(t.log, rv+1, func(e Event, rv uint64) int { return cmp.Compare(e.RV, rv) })
	return t.log[i:], true
}

// Before returns the resourceVersion before the last n changes, or before all that are
// known. The store must be locked.
func (st *Store) Before(n int) uint64 {
	var rvs []uint64
	for _, t := range st.Tables {
		for _, ev := range t.log[max(0, len(t.log)-n):] {
			rvs = append(rvs, ev.RV)
		}
	}
	if n <= 0 || len(rvs) == 0 {
		return st.RV
	}
	slices.Sort(rvs)
	return rvs[max(0, len(rvs)-n)] - 1
}

// Forget drops all history: older resourceVersions are expired.
func (t *Table) Forget(rv uint64) {
	t.Forgotten, t.log = rv, nil
}

// Newest returns the newest resourceVersion of any object.
func (s *Store) Newest() string {
	s.Lock()
	defer s.Unlock()
	return FormatRV(s.RV)
}
