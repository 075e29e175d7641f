// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Change is one change of one object, as Observe reports it.
type Change struct {
	// Type is watch.Added, watch.Modified or watch.Deleted.
	Type watch.EventType
	// Object is a copy of the new state. For a deletion it is the last state, with the
	// resourceVersion of the deletion.
	Object runtime.Object
	// Old is a copy of the state before, or nil for a creation.
	Old runtime.Object
}

// observer is one function of Observe.
type observer struct{ f func(Change) }

// Observe calls f with every change of every object, whoever made it, until remove is
// called. The changes arrive in the order of their resourceVersions and one at a time, on
// the goroutine that made the change, before the client gets its answer. Until f returns,
// all other writes wait, so f can read the state right after the write: with Get, List and
// Objects. f must not write, and must not wait for another goroutine.
//
// A write that changes several objects, such as a deletion of a collection, is reported
// after its last change. The restore of a Backup is not reported.
func (s *Server) Observe(f func(Change)) (remove func()) {
	o := &observer{f}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.observers = append(slices.Clone(s.store.observers), o)
	return func() {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		s.store.observers = slices.DeleteFunc(slices.Clone(s.store.observers), func(x *observer) bool { return x == o })
	}
}

func (ev *event) change() Change {
	c := Change{Type: ev.typ, Object: ev.kind.into(ev.cur.obj)}
	if ev.prev != nil {
		c.Old = ev.kind.into(ev.prev.obj)
	}
	return c
}

// Objects returns copies of all objects of all kinds, in their stored versions, sorted by
// group, kind, namespace and name.
func (s *Server) Objects() []runtime.Object {
	s.store.mu.Lock()
	tables := make([]*table, 0, len(s.store.tables))
	for _, t := range s.store.tables {
		tables = append(tables, t)
	}
	slices.SortFunc(tables, func(a, b *table) int {
		x, y := a.kind.groupKind(), b.kind.groupKind()
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Kind, y.Kind))
	})
	var out []runtime.Object
	for _, t := range tables {
		for _, it := range t.sorted("") {
			out = append(out, t.kind.into(it.obj))
		}
	}
	s.store.mu.Unlock()
	return out
}
