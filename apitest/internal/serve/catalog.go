// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest/internal/rules"
)

// lookup finds the kind and view that serve a resource in a group version; nil
// if the server has none.
func (s *Server) lookup(gv schema.GroupVersion, resource string) (*rules.Kind, int) {
	gvr := gv.WithResource(resource)
	r, ok := s.builtin.ByResource[gvr]
	if !ok {
		s.mu.Lock()
		r = s.own.ByResource[gvr]
		s.mu.Unlock()
	}
	return r.Kind, r.View
}

// kinds returns every kind of the server, those of its own last.
func (s *Server) kinds() []*rules.Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.own.Kinds) == 0 {
		return s.builtin.Kinds
	}
	return slices.Concat(s.builtin.Kinds, s.own.Kinds)
}

// kindNamed finds a kind by group and kind; nil if the server has none.
func (s *Server) kindNamed(gk schema.GroupKind) *rules.Kind {
	if k := s.builtin.ByGroupKind[gk]; k != nil {
		return k
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.ByGroupKind[gk]
}

// KindOf returns the kind of an object. It panics if the server does not have
// the kind, which is a mistake in a test.
func (s *Server) KindOf(obj runtime.Object) (*rules.Kind, int) {
	s.mu.Lock()
	r, ok := s.own.ByType[reflect.TypeOf(obj)]
	if !ok {
		gvk := obj.GetObjectKind().GroupVersionKind()
		if gvks, _, err := scheme.Scheme.ObjectKinds(obj); err == nil {
			gvk = gvks[0]
		}
		if r, ok = s.builtin.ByKind[gvk]; !ok {
			r, ok = s.own.ByKind[gvk]
		}
	}
	s.mu.Unlock()
	if !ok {
		panic("apitest: the server has no kind for " + reflect.TypeOf(obj).String() + " (" + obj.GetObjectKind().GroupVersionKind().String() + "): " + howToRegister)
	}
	return r.Kind, r.View
}

// howToRegister ends the messages about kinds that the server does not have.
const howToRegister = "pass the kind to Server.Register or in Options.Kinds, or create its CustomResourceDefinition"
