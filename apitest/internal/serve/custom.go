// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Register adds k to the server's own kinds, in place of one of the same name.
func (s *Server) Register(k *rules.Kind) {
	s.Store.Lock()
	defer s.Store.Unlock()
	s.register(k)
}

// register adds k to the server's own kinds and serves its versions. The lock
// of the store is held.
func (s *Server) register(k *rules.Kind) {
	if s.builtin.ByGroupKind[k.GroupKind()] != nil {
		panic("apitest: every server has the kind " + k.GroupKind().String())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.own.ByGroupKind[k.GroupKind()]; old != nil {
		k.First = old.Table()
		if k.GoType == nil {
			k.GoType = old.GoType
		}
		s.own.Remove(old)
	}
	s.own.Add(k)
	for _, v := range k.Views {
		s.served[v.GV] = true
	}
}

// unregister removes a kind of the server's own with all its objects. The lock
// of the store is held.
func (s *Server) unregister(k *rules.Kind) {
	t := s.Store.Table(k)
	for _, it := range t.Sorted("") {
		s.Store.Remove(t, it)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.Remove(k)
}

// defined updates the kinds of the server after a change of a
// CustomResourceDefinition. The store must be locked.
func (s *Server) defined(ev store.Event) {
	d, errs := rules.DefinitionOf(ev.Cur.Obj)
	if len(errs) > 0 || s.builtin.ByGroupKind[d.Kind.GroupKind()] != nil {
		return
	}
	if ev.Typ != "DELETED" {
		d.Kind.Compile(s.Schemas, ev.Cur.Obj)
		s.register(d.Kind)
		return
	}
	if k := s.kindNamed(d.Kind.GroupKind()); k != nil {
		s.unregister(k)
	}
}
