// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// special lists the kinds with rules of their own. Every other kind of
// client-go's scheme is served by the rules that all kinds share.
var special = []*kind{
	namespaces, nodes, pods, configMaps, secrets, services, serviceAccounts, events,
	leases, leaseCandidates,
	deviceClasses, resourceClaims, resourceClaimTemplates, resourceSlices,
}

// ref is a kind in one of its versions.
type ref struct {
	kind *kind
	view int
}

// catalog finds kinds by what requests, objects and owner references name.
type catalog struct {
	kinds       []*kind
	byResource  map[schema.GroupVersionResource]ref
	byKind      map[schema.GroupVersionKind]ref
	byGroupKind map[schema.GroupKind]*kind
	byType      map[reflect.Type]ref // Go types of registered kinds
}

func newCatalog() *catalog {
	return &catalog{
		byResource: map[schema.GroupVersionResource]ref{}, byKind: map[schema.GroupVersionKind]ref{},
		byGroupKind: map[schema.GroupKind]*kind{}, byType: map[reflect.Type]ref{},
	}
}

// add adds k. A kind that is there already keeps its place.
func (c *catalog) add(k *kind) {
	for i := range k.views {
		gv, r := k.views[i].gv, ref{k, i}
		c.byResource[gv.WithResource(k.resource)] = r
		c.byKind[gv.WithKind(k.name)] = r
		c.byGroupKind[gv.WithKind(k.name).GroupKind()] = k
	}
	if k.goType != nil {
		c.byType[k.goType] = ref{k, 0}
	}
	c.kinds = append(c.kinds, k)
}

// remove removes k.
func (c *catalog) remove(k *kind) {
	for i := range k.views {
		gv := k.views[i].gv
		delete(c.byResource, gv.WithResource(k.resource))
		delete(c.byKind, gv.WithKind(k.name))
		delete(c.byGroupKind, gv.WithKind(k.name).GroupKind())
	}
	delete(c.byType, k.goType)
	c.kinds = slices.DeleteFunc(c.kinds, func(o *kind) bool { return o == k })
}

// builtin returns the kinds that every server has, and the group versions that
// a server serves unless Options.Refuse names them: of each kind the newest
// version, if it is stable.
var builtin = sync.OnceValues(func() (*catalog, map[schema.GroupVersion]bool) {
	c := newCatalog()
	for _, k := range special {
		c.add(k)
	}
	c.add(customResourceDefinitions)
	for _, k := range generic(c) {
		c.add(k)
	}
	stable := map[schema.GroupVersion]bool{}
	for _, k := range c.kinds {
		if v := k.stored(); !strings.Contains(v.Version, "alpha") && !strings.Contains(v.Version, "beta") {
			stable[v] = true
		}
	}
	for _, k := range special {
		for _, v := range k.views {
			if v.deprecated == 0 {
				stable[v.gv] = true
			}
		}
	}
	return c, stable
})

// covers reports whether a kind is in the catalog in any version.
func (c *catalog) covers(gvk schema.GroupVersionKind) bool {
	if gvk.Kind == "ComponentStatus" { // nothing in memory has one
		return true
	}
	_, ok := c.byGroupKind[gvk.GroupKind()]
	return ok
}

// lookup finds the kind and view that serve a resource in a group version; nil
// if the server has none.
func (s *Server) lookup(gv schema.GroupVersion, resource string) (*kind, int) {
	gvr := gv.WithResource(resource)
	r, ok := s.builtin.byResource[gvr]
	if !ok {
		s.mu.Lock()
		r = s.own.byResource[gvr]
		s.mu.Unlock()
	}
	return r.kind, r.view
}

// kinds returns every kind of the server, those of its own last.
func (s *Server) kinds() []*kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.own.kinds) == 0 {
		return s.builtin.kinds
	}
	return slices.Concat(s.builtin.kinds, s.own.kinds)
}

// kindNamed finds a kind by group and kind; nil if the server has none.
func (s *Server) kindNamed(gk schema.GroupKind) *kind {
	if k := s.builtin.byGroupKind[gk]; k != nil {
		return k
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.byGroupKind[gk]
}

// kindOf finds the kind of an object. A kind that the server does not have is
// a mistake in a test.
func (s *Server) kindOf(obj runtime.Object) (*kind, int) {
	s.mu.Lock()
	r, ok := s.own.byType[reflect.TypeOf(obj)]
	if !ok {
		gvk := obj.GetObjectKind().GroupVersionKind()
		if gvks, _, err := scheme.Scheme.ObjectKinds(obj); err == nil {
			gvk = gvks[0]
		}
		if r, ok = s.builtin.byKind[gvk]; !ok {
			r, ok = s.own.byKind[gvk]
		}
	}
	s.mu.Unlock()
	if !ok {
		panic("apitest: the server has no kind for " + reflect.TypeOf(obj).String() + " (" + obj.GetObjectKind().GroupVersionKind().String() + "): " + howToRegister)
	}
	return r.kind, r.view
}

// howToRegister ends the messages about kinds that the server does not have.
const howToRegister = "pass the kind to Server.Register or in Options.Kinds, or create its CustomResourceDefinition"
