// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Schema is the interface of the same name in package apitest.
type Schema interface {
	Prune(obj map[string]any) (unknown []string, err error)
	Default(obj map[string]any)
	Validate(obj, old map[string]any, subresource string) field.ErrorList
}

// Compiler returns the schemas of a CustomResourceDefinition by version.
type Compiler func(definition *unstructured.Unstructured) (map[string]Schema, field.ErrorList)

// Compile gives the kind the schemas of its definition. An invalid definition, which
// only Server.Put can store, has none.
func (k *Kind) Compile(compile Compiler, definition runtime.Object) {
	if compile == nil {
		return
	}
	schemas, errs := compile(definition.(*unstructured.Unstructured).DeepCopy())
	if len(errs) > 0 {
		return
	}
	for i := range k.Views {
		k.Views[i].schema = schemas[k.Views[i].GV.Version]
	}
	k.validate = func(w *Write, obj, old runtime.Object) field.ErrorList {
		s := k.Views[w.View].schema
		switch {
		case s == nil:
			return nil
		case old == nil:
			return s.Validate(contentOf(obj), nil, w.Subresource)
		}
		return s.Validate(contentOf(obj), contentOf(old), w.Subresource)
	}
}

// SetDefaults sets the default values of fields in obj, which was written in view v.
func (k *Kind) SetDefaults(obj runtime.Object, v int) {
	if k.Defaults != nil {
		k.Defaults(obj)
	}
	if s := k.Views[v].schema; s != nil {
		s.Default(contentOf(obj))
	}
}

// CheckFields returns an error if an apply in view v has a field that the schema does
// not have. The real server reports one such field too.
func (k *Kind) CheckFields(apply *unstructured.Unstructured, v int) error {
	s := k.Views[v].schema
	if s == nil {
		return nil
	}
	unknown, err := s.Prune(apply.DeepCopy().Object)
	if err != nil || len(unknown) == 0 {
		return err
	}
	return fmt.Errorf("failed to create typed patch object (%s/%s; %s): .%s: field not declared in schema",
		apply.GetNamespace(), apply.GetName(), apply.GroupVersionKind(), unknown[0])
}
