// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// kind describes a resource: all rules that differ from one resource to another.
type kind struct {
	name     string // Kind
	resource string // plural
	// views are the API versions of the kind. The first is the stored version.
	views      []view
	namespaced bool
	// dynamic is set if the objects are *unstructured.Unstructured, which are
	// served in JSON only.
	dynamic bool
	// goType is the type for Put, Get, List, Edit and Delete of a dynamic kind.
	goType reflect.Type
	// first is the kind that was registered first, which has the objects. Nil
	// means the kind itself.
	first *kind
	// status is set if /status is a subresource. onUpdate keeps writes of the
	// object from changing the status, and writes of the status from changing
	// the rest.
	status       bool
	subresources []subresource // others

	// validName checks metadata.name, or with prefix a generateName.
	validName func(name string, prefix bool) []string
	// fields returns the value of a selectable field beyond metadata.name
	// and metadata.namespace, and whether there is such a field.
	fields func(obj runtime.Object, path string) (value string, ok bool)

	createOnUpdate bool // PUT of a missing object creates it
	unconditional  bool // PUT without a resourceVersion overwrites
	noCollection   bool // its objects can't be deleted all at once
	returnsDeleted bool // DELETE answers with the object, not a Status

	// spec returns what metadata.generation counts the changes of; nil for a
	// kind that keeps no generation.
	spec func(obj runtime.Object) any
	// node returns the node that an object belongs to, for the Node
	// authorizer; nil for a kind whose objects belong to none.
	node func(obj runtime.Object) string
	// defaults sets the default values of fields on every write.
	defaults func(obj runtime.Object)
	// admit changes or refuses a write, as an admission plugin does; old is nil on
	// create. store.mu is held.
	admit func(c *call, obj, old runtime.Object) error
	// onCreate and onUpdate reset fields that a client must not set, before
	// validation.
	onCreate func(w *write, obj runtime.Object)
	onUpdate func(w *write, obj, old runtime.Object)
	// validate checks obj; old is nil on create.
	validate func(w *write, obj, old runtime.Object) field.ErrorList
	// graceful decides the grace period of a deletion; nil means that the
	// kind has none.
	graceful func(obj runtime.Object, opts *metav1.DeleteOptions)
	// onDelete may keep an object from being removed, and may change it.
	onDelete func(obj runtime.Object) (keep, changed bool)
}

// view is one API version of a kind.
type view struct {
	gv schema.GroupVersion
	// toStored and fromStored convert objects; they are nil for the stored
	// version. They return new objects, which may share unchanged values.
	toStored, fromStored func(runtime.Object) runtime.Object
	// labels maps the selectable fields of this version to their names in the
	// stored version. Nil means that the names are equal.
	labels map[string]string
	// deprecated and removed are the minor versions of Kubernetes that
	// deprecate and remove this version; 0 means none.
	deprecated, removed int
}

// deprecation returns the warning of a server of a minor version for requests in
// this version, or "".
func (v *view) deprecation(k *kind, minor int) string {
	if v.deprecated == 0 || minor < v.deprecated {
		return ""
	}
	return fmt.Sprintf("%s %s is deprecated in v1.%d+, unavailable in v1.%d+", v.gv, k.name, v.deprecated, v.removed)
}

func (k *kind) stored() schema.GroupVersion { return k.views[0].gv }

func (k *kind) groupKind() schema.GroupKind { return k.stored().WithKind(k.name).GroupKind() }

// groupResource returns the name of the resource in error messages, which have
// the group of the request.
func (k *kind) groupResource(v int) schema.GroupResource {
	return schema.GroupResource{Group: k.views[v].gv.Group, Resource: k.resource}
}

// convertTo returns obj, which is stored, in view v.
func (k *kind) convertTo(obj runtime.Object, v int) runtime.Object {
	if f := k.views[v].fromStored; f != nil {
		obj = f(obj)
		obj.GetObjectKind().SetGroupVersionKind(k.views[v].gv.WithKind(k.name))
	}
	return obj
}

// convertFrom returns obj, which a client sent in view v, in the stored version.
func (k *kind) convertFrom(obj runtime.Object, v int) runtime.Object {
	if f := k.views[v].toStored; f != nil {
		obj = f(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(k.stored().WithKind(k.name))
	return obj
}

// allSubresources returns all subresources, including /status.
func (k *kind) allSubresources() []subresource {
	if !k.status {
		return k.subresources
	}
	return append(slices.Clone(k.subresources), subresource{name: "status"})
}

// subresource finds a subresource; ok is false if there is none.
func (k *kind) subresource(name string) (subresource, bool) {
	for _, s := range k.allSubresources() {
		if s.name == name {
			return s, true
		}
	}
	return subresource{}, false
}

// sameSpec reports whether an update keeps the generation.
func (k *kind) sameSpec(obj, old runtime.Object) bool {
	return equality.Semantic.DeepEqual(k.spec(obj), k.spec(old))
}

// table returns the kind under which the objects are stored.
func (k *kind) table() *kind {
	if k.first != nil {
		return k.first
	}
	return k
}

// zero returns an object of the kind without content in view v.
func (k *kind) zero(v int) runtime.Object {
	gvk := k.views[v].gv.WithKind(k.name)
	if k.dynamic {
		obj := &unstructured.Unstructured{Object: map[string]any{}}
		obj.SetGroupVersionKind(gvk)
		return obj
	}
	obj, err := scheme.Scheme.New(gvk)
	if err != nil {
		panic("apitest: " + err.Error()) // the table of kinds is wrong
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj
}

// into returns a copy of obj in the Go type that the test uses.
func (k *kind) into(obj runtime.Object) runtime.Object {
	if k.goType == nil {
		return obj.DeepCopyObject()
	}
	out := reflect.New(k.goType.Elem()).Interface().(runtime.Object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(contentOf(obj), out); err != nil {
		panic("apitest: " + err.Error())
	}
	return out
}

// from returns a copy of obj, which a test made in view v, in the stored version.
func (k *kind) from(obj runtime.Object, v int) runtime.Object {
	if _, ok := obj.(*unstructured.Unstructured); !ok && k.dynamic {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			panic("apitest: " + err.Error())
		}
		return k.convertFrom(&unstructured.Unstructured{Object: m}, v)
	}
	return k.convertFrom(obj.DeepCopyObject(), v)
}

// special lists the kinds with special rules. All other kinds of client-go's
// clientset have only the rules that all kinds share.
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

// catalog is an index of kinds.
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

// kindOf returns the kind of an object. It panics if the server does not have
// the kind, which is a mistake in a test.
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
