// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// Write is what the rules of a kind may know of a write and of the server.
type Write struct {
	Group       string // of the version of the request
	Subresource string
	View        int         // the index of the version of the request in Kind.Views
	Minor       int         // the minor version of the server
	Now         metav1.Time // truncated to seconds, as the API stores times
	// On reports whether a feature gate is on.
	On func(gate string) bool
	// Objects returns the stored objects of a kind, sorted by namespace and name.
	Objects func(schema.GroupKind) []runtime.Object
	// Schemas compiles the schemas of a CustomResourceDefinition. Nil means that
	// custom resources have no schemas.
	Schemas Compiler
}

// Kind describes a resource: all rules that differ from one resource to another.
type Kind struct {
	Name     string // Kind
	Resource string // plural
	// Views are the API versions of the kind. The first is the stored version.
	Views      []View
	Namespaced bool
	// Dynamic is set if the objects are *unstructured.Unstructured, which are
	// served in JSON only.
	Dynamic bool
	// GoType is the type for Put, Get, List, Edit and Remove of a dynamic kind.
	GoType reflect.Type
	// First is the kind that was registered first, which has the objects. Nil
	// means the kind itself.
	First *Kind
	// Status is set if /status is a subresource. onUpdate keeps writes of the
	// object from changing the status, and writes of the status from changing
	// the rest.
	Status       bool
	subresources []Subresource // others

	// validName checks metadata.name, or with prefix a generateName.
	validName func(name string, prefix bool) []string
	// Fields returns the value of a selectable field beyond metadata.name
	// and metadata.namespace, and whether there is such a field.
	Fields func(obj runtime.Object, path string) (value string, ok bool)

	CreateOnUpdate bool // PUT of a missing object creates it
	Unconditional  bool // PUT without a resourceVersion overwrites
	NoCollection   bool // its objects can't be deleted all at once
	ReturnsDeleted bool // DELETE answers with the object, not a Status

	// scale has the paths of /scale of a kind without a Go type.
	scale scalePaths
	// Spec returns what metadata.generation counts the changes of; nil for a
	// kind that keeps no generation.
	Spec func(obj runtime.Object) any
	// Node returns the node that an object belongs to, for the Node
	// authorizer; nil for a kind whose objects belong to none.
	Node func(obj runtime.Object) string
	// Defaults sets the default values of fields on every write.
	Defaults func(obj runtime.Object)
	// Admit changes or refuses a write, as an admission plugin does; old is nil on
	// create. The store is locked.
	Admit func(w *Write, obj, old runtime.Object) error
	// OnCreate and onUpdate reset fields that a client must not set, before
	// validation.
	OnCreate func(w *Write, obj runtime.Object)
	OnUpdate func(w *Write, obj, old runtime.Object)
	// validate checks obj; old is nil on create.
	validate func(w *Write, obj, old runtime.Object) field.ErrorList
	// Graceful decides the grace period of a deletion; nil means that the
	// kind has none.
	Graceful func(obj runtime.Object, opts *metav1.DeleteOptions)
	// OnDelete may keep an object from being removed, and may change it.
	OnDelete func(obj runtime.Object) (keep, changed bool)
}

// View is one API version of a kind.
type View struct {
	GV schema.GroupVersion
	// toStored and fromStored convert objects; they are nil for the stored
	// version. They return new objects, which may share unchanged values.
	toStored, fromStored func(runtime.Object) runtime.Object
	// schema prunes, defaults and validates the objects of this version, which
	// have no Go type. It may be nil.
	schema Schema
	// Labels maps the selectable fields of this version to their names in the
	// stored version. Nil means that the names are equal.
	Labels map[string]string
	// deprecated and removed are the minor versions of Kubernetes that
	// deprecate and remove this version; 0 means none.
	deprecated, removed int
}

// Deprecation returns the warning of a server of a minor version for requests in
// this version, or "".
func (v *View) Deprecation(k *Kind, minor int) string {
	if v.deprecated == 0 || minor < v.deprecated {
		return ""
	}
	return fmt.Sprintf("%s %s is deprecated in v1.%d+, unavailable in v1.%d+", v.GV, k.Name, v.deprecated, v.removed)
}

// Stored returns the version in which objects are stored.
func (k *Kind) Stored() schema.GroupVersion { return k.Views[0].GV }

// GroupKind returns the group and the name of the kind.
func (k *Kind) GroupKind() schema.GroupKind { return k.Stored().WithKind(k.Name).GroupKind() }

// GroupResource returns the name of the resource in error messages, which have
// the group of the request.
func (k *Kind) GroupResource(v int) schema.GroupResource {
	return schema.GroupResource{Group: k.Views[v].GV.Group, Resource: k.Resource}
}

// ConvertTo returns obj, which is stored, in view v.
func (k *Kind) ConvertTo(obj runtime.Object, v int) runtime.Object {
	if f := k.Views[v].fromStored; f != nil {
		obj = f(obj)
		obj.GetObjectKind().SetGroupVersionKind(k.Views[v].GV.WithKind(k.Name))
	}
	return obj
}

// ConvertFrom returns obj, which a client sent in view v, in the stored version.
func (k *Kind) ConvertFrom(obj runtime.Object, v int) runtime.Object {
	if f := k.Views[v].toStored; f != nil {
		obj = f(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(k.Stored().WithKind(k.Name))
	return obj
}

// AllSubresources returns all subresources, including /status.
func (k *Kind) AllSubresources() []Subresource {
	if !k.Status {
		return k.subresources
	}
	return append(slices.Clone(k.subresources), Subresource{Name: "status"})
}

// Subresource finds a subresource; ok is false if there is none.
func (k *Kind) Subresource(name string) (Subresource, bool) {
	for _, s := range k.AllSubresources() {
		if s.Name == name {
			return s, true
		}
	}
	return Subresource{}, false
}

// SameSpec reports whether an update keeps the generation.
func (k *Kind) SameSpec(obj, old runtime.Object) bool {
	return equality.Semantic.DeepEqual(k.Spec(obj), k.Spec(old))
}

// Table returns the kind under which the objects are stored.
func (k *Kind) Table() *Kind {
	if k.First != nil {
		return k.First
	}
	return k
}

// Zero returns an object of the kind without content in view v.
func (k *Kind) Zero(v int) runtime.Object {
	gvk := k.Views[v].GV.WithKind(k.Name)
	if k.Dynamic {
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

// Typed converts an object of a dynamic kind to GoType, which must not be nil.
func (k *Kind) Typed(obj runtime.Object) runtime.Object {
	out := reflect.New(k.GoType.Elem()).Interface().(runtime.Object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(contentOf(obj), out); err != nil {
		panic("apitest: " + err.Error())
	}
	return out
}

// From returns a copy of obj, which a test made in view v, in the stored version.
func (k *Kind) From(obj runtime.Object, v int) runtime.Object {
	if _, ok := obj.(*unstructured.Unstructured); !ok && k.Dynamic {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			panic("apitest: " + err.Error())
		}
		return k.ConvertFrom(&unstructured.Unstructured{Object: m}, v)
	}
	return k.ConvertFrom(obj.DeepCopyObject(), v)
}

// Subresource is a path below the path of an object.
type Subresource struct {
	Name string
	// GVK, if set, is the kind of the requests that a POST sends, or with Scale of the
	// answers. Without it the subresource is a view of the object that can be read,
	// updated and patched.
	GVK   schema.GroupVersionKind
	Scale bool
	// updateOnly is set for a view that can only be written by PUT.
	updateOnly bool
}

// Posted reports whether the subresource only takes requests that a client creates.
func (s Subresource) Posted() bool { return s.GVK.Kind != "" && !s.Scale }

// Verbs returns the verbs of the subresource, in the order of discovery.
func (s Subresource) Verbs() metav1.Verbs {
	if s.Posted() {
		return metav1.Verbs{"create"}
	}
	if s.updateOnly {
		return metav1.Verbs{"update"}
	}
	return metav1.Verbs{"get", "patch", "update"}
}

// verbs are in the order in which discovery gives them.
var mainVerbs = metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// Verbs returns the verbs of the kind, in the order of discovery.
func (k *Kind) Verbs() metav1.Verbs {
	if k.NoCollection {
		return slices.DeleteFunc(slices.Clone(mainVerbs), func(v string) bool { return v == "deletecollection" })
	}
	return mainVerbs
}

// scalePaths are where an object without a Go type has the fields of a Scale.
type scalePaths struct{ replicas, current, selector []string }

// part is a field of an API object.
func part(obj runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(name)
}

// contentOf is the content of an object without a Go type.
func contentOf(obj runtime.Object) map[string]any { return obj.(*unstructured.Unstructured).Object }
