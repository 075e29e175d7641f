// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewright/kubewright/apitest/internal/store"
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

// Observe calls f with every change of every object, whoever made it, until remove is
// called. The changes arrive in the order of their resourceVersions and one at a time, on
// the goroutine that made the change, before the client gets its answer. Until f returns,
// all other writes wait, so f can read the state right after the write: with Get, List and
// Objects. f must not write, and must not wait for another goroutine.
//
// A write that changes several objects, such as a deletion of a collection, is reported
// after its last change. The restore of a Backup is not reported.
func (s *Server) Observe(f func(Change)) (remove func()) {
	return s.core.Store.Observing(func(ev store.Event) { f(changeOf(&ev)) })
}

func changeOf(ev *store.Event) Change {
	c := Change{Type: ev.Typ, Object: ev.Cur.Into(ev.Kind, 0)}
	if ev.Prev != nil {
		c.Old = ev.Prev.Into(ev.Kind, 0)
	}
	return c
}

// Objects returns copies of all objects of all kinds, in their stored versions, sorted by
// group, kind, namespace and name.
func (s *Server) Objects() []runtime.Object {
	s.core.Store.Lock()
	tables := make([]*store.Table, 0, len(s.core.Store.Tables))
	for _, t := range s.core.Store.Tables {
		tables = append(tables, t)
	}
	slices.SortFunc(tables, func(a, b *store.Table) int {
		x, y := a.Kind.GroupKind(), b.Kind.GroupKind()
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Kind, y.Kind))
	})
	var out []runtime.Object
	for _, t := range tables {
		for _, it := range t.Sorted("") {
			out = append(out, it.Into(t.Kind, 0))
		}
	}
	s.core.Store.Unlock()
	return out
}
