// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// typedSchemas reads client-go's schemas of all built-in types. It takes a
// while, so it waits for the first apply.
var typedSchemas = sync.OnceValue(func() managedfields.TypeConverter {
	return applyconfigurations.NewTypeConverter(scheme.Scheme)
})

// FieldManager returns apimachinery's field manager for a version of the kind.
func (k *Kind) FieldManager(view int, subresource string) (*managedfields.FieldManager, error) {
	gv, c := k.Views[view].GV, converter{k}
	if k.Dynamic {
		return managedfields.NewDefaultCRDFieldManager(managedfields.NewDeducedTypeConverter(), c, c, c, gv.WithKind(k.Name), gv, subresource, nil)
	}
	return managedfields.NewDefaultFieldManager(typedSchemas(), c, c, c, gv.WithKind(k.Name), gv, subresource, nil)
}

// converter describes a kind to a field manager.
type converter struct{ k *Kind }

// Default does nothing: the server fills in defaults itself.
func (converter) Default(runtime.Object) {}

// New returns an object without content.
func (c converter) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	for v := range c.k.Views {
		if c.k.Views[v].GV == gvk.GroupVersion() {
			return c.k.Zero(v), nil
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind("apitest", gvk)
}

// Convert and ConvertFieldLabel are not used by field managers.
func (converter) Convert(in, _, _ any) error { return fmt.Errorf("no conversion of %T", in) }

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (converter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// ConvertToVersion converts an object to another version of the kind, and one
// without a Go type to the type that it has.
func (c converter) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	gv, ok := target.(schema.GroupVersion)
	if !ok {
		return nil, fmt.Errorf("no version %v", target)
	}
	at := func(gv schema.GroupVersion) int {
		return slices.IndexFunc(c.k.Views, func(v View) bool { return v.GV == gv })
	}
	from, to := at(in.GetObjectKind().GroupVersionKind().GroupVersion()), at(gv)
	if from < 0 || to < 0 {
		return nil, runtime.NewNotRegisteredErrForTarget("apitest", nil, target)
	}
	if u, ok := in.(*unstructured.Unstructured); ok && !c.k.Dynamic {
		in = c.k.Zero(from)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, in); err != nil {
			return nil, err
		}
	}
	if from == to {
		return in, nil
	}
	return c.k.ConvertTo(c.k.ConvertFrom(codec.Shallow(in), from), to), nil
}
