// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Special lists the kinds with special rules. All other kinds of client-go's
// clientset have only the rules that all kinds share.
var Special = []*Kind{
	namespaces, nodes, pods, configMaps, secrets, services, serviceAccounts, events,
	leases, leaseCandidates,
	deviceClasses, resourceClaims, resourceClaimTemplates, resourceSlices,
}

// Ref is a kind in one of its versions.
type Ref struct {
	Kind *Kind
	View int
}

// Catalog is an index of kinds.
type Catalog struct {
	Kinds       []*Kind
	ByResource  map[schema.GroupVersionResource]Ref
	ByKind      map[schema.GroupVersionKind]Ref
	ByGroupKind map[schema.GroupKind]*Kind
	ByType      map[reflect.Type]Ref // Go types of registered kinds
}

// NewCatalog returns an empty catalog.
func NewCatalog() *Catalog {
	return &Catalog{
		ByResource: map[schema.GroupVersionResource]Ref{}, ByKind: map[schema.GroupVersionKind]Ref{},
		ByGroupKind: map[schema.GroupKind]*Kind{}, ByType: map[reflect.Type]Ref{},
	}
}

// Add adds k. A kind that is there already keeps its place.
func (c *Catalog) Add(k *Kind) {
	for i := range k.Views {
		gv, r := k.Views[i].GV, Ref{k, i}
		c.ByResource[gv.WithResource(k.Resource)] = r
		c.ByKind[gv.WithKind(k.Name)] = r
		c.ByGroupKind[gv.WithKind(k.Name).GroupKind()] = k
	}
	if k.GoType != nil {
		c.ByType[k.GoType] = Ref{k, 0}
	}
	c.Kinds = append(c.Kinds, k)
}

// Remove removes k.
func (c *Catalog) Remove(k *Kind) {
	for i := range k.Views {
		gv := k.Views[i].GV
		delete(c.ByResource, gv.WithResource(k.Resource))
		delete(c.ByKind, gv.WithKind(k.Name))
		delete(c.ByGroupKind, gv.WithKind(k.Name).GroupKind())
	}
	delete(c.ByType, k.GoType)
	c.Kinds = slices.DeleteFunc(c.Kinds, func(o *Kind) bool { return o == k })
}

// Builtin returns the kinds that every server has, and the group versions that
// a server serves unless Options.Refuse names them: of each kind the newest
// version, if it is stable.
var Builtin = sync.OnceValues(func() (*Catalog, map[schema.GroupVersion]bool) {
	c := NewCatalog()
	for _, k := range Special {
		c.Add(k)
	}
	c.Add(customResourceDefinitions)
	for _, k := range generic(c) {
		c.Add(k)
	}
	stable := map[schema.GroupVersion]bool{}
	for _, k := range c.Kinds {
		if v := k.Stored(); !strings.Contains(v.Version, "alpha") && !strings.Contains(v.Version, "beta") {
			stable[v] = true
		}
	}
	for _, k := range Special {
		for _, v := range k.Views {
			if v.deprecated == 0 {
				stable[v.GV] = true
			}
		}
	}
	return c, stable
})

// covers reports whether a kind is in the catalog in any version.
func (c *Catalog) covers(gvk schema.GroupVersionKind) bool {
	if gvk.Kind == "ComponentStatus" { // nothing in memory has one
		return true
	}
	_, ok := c.ByGroupKind[gvk.GroupKind()]
	return ok
}
