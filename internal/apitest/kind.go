// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// kind is a row of the table of what the server serves: everything that
// distinguishes one resource from another.
type kind struct {
	name     string // Kind
	resource string // plural
	// views are the API versions it can be served in; the first is how it is
	// stored.
	views      []view
	namespaced bool
	// status says that /status is a subresource of its own, so that writes
	// of the object leave status alone and the other way round.
	status bool

	// validName checks metadata.name, or with prefix a generateName.
	validName func(name string, prefix bool) []string
	// fields returns the value of a selectable field beyond metadata.name
	// and metadata.namespace, and whether there is such a field.
	fields func(obj runtime.Object, path string) (value string, ok bool)

	createOnUpdate bool // PUT of a missing object creates it
	unconditional  bool // PUT without a resourceVersion overwrites
	returnsDeleted bool // DELETE answers with the object, not a Status
	generation     bool // metadata.generation is kept: 1, and one more for each change of spec

	// defaults fills in what a client may leave out. Any write.
	defaults func(obj runtime.Object)
	// onCreate and onUpdate make a client's object acceptable: they reset
	// what it may not set, before validation.
	onCreate func(w *write, obj runtime.Object)
	onUpdate func(w *write, obj, old runtime.Object)
	// validate checks obj; old is nil on create.
	validate func(w *write, obj, old runtime.Object) field.ErrorList
	// graceful decides the grace period of a deletion; nil means that the
	// kind has none.
	graceful func(obj runtime.Object, opts *v1.DeleteOptions)
	// specChanged says whether an update counts for generation.
	specChanged func(obj, old runtime.Object) bool
}

// view is one API version of a kind.
type view struct {
	gv schema.GroupVersion
	// toStored and fromStored convert; nil for the stored version. They
	// return fresh objects or share what they don't change.
	toStored, fromStored func(runtime.Object) runtime.Object
}

func (k *kind) stored() schema.GroupVersion { return k.views[0].gv }

func (k *kind) groupKind() schema.GroupKind { return k.stored().WithKind(k.name).GroupKind() }

// groupResource is for error messages, which name the group of the request.
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

// convertFrom returns obj, which a client sent in view v, as it is stored.
func (k *kind) convertFrom(obj runtime.Object, v int) runtime.Object {
	if f := k.views[v].toStored; f != nil {
		obj = f(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(k.stored().WithKind(k.name))
	return obj
}
