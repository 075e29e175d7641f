// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// Decoder returns the decoder for bodies of the kind in view v.
func (k *Kind) Decoder(v int, m *codec.Media, strict bool) runtime.Decoder {
	if k.Dynamic {
		return untyped{kind: k.Stored().WithKind(k.Name), definition: k.Stored() == DefinitionVersion, schema: k.Views[v].schema, yaml: m == codec.YAML, strict: strict}
	}
	return m.Decoder(strict)
}

// untyped decodes objects of a kind that has no Go type here.
type untyped struct {
	kind         schema.GroupVersionKind
	definition   bool // the kind has a type on the real server, so a body need not name it
	schema       Schema
	yaml, strict bool
}

// Decode implements runtime.Decoder.
func (u untyped) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	_, got, err := serializerjson.NewSerializerWithOptions(serializerjson.DefaultMetaFactory, nil, runtime.NewScheme(),
		serializerjson.SerializerOptions{Yaml: u.yaml, Strict: u.strict}).Decode(data, nil, obj)
	strict, isStrict := runtime.AsStrictDecodingError(err)
	if obj.Object == nil {
		obj.Object = map[string]any{}
	}
	if err != nil && !isStrict && !(u.definition && runtime.IsMissingKind(err)) {
		return nil, got, err
	}
	if u.definition && obj.GroupVersionKind().Empty() {
		obj.SetGroupVersionKind(u.kind)
	} else if obj.GetAPIVersion() == "" {
		return nil, got, runtime.NewMissingVersionErr(string(data))
	}
	gvk := obj.GroupVersionKind()
	if u.definition {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &definitionTypes{}); err != nil {
			return nil, &gvk, err
		}
	}
	var all []error
	if isStrict {
		all = strict.Errors()
	}
	unknown, err := CoerceMeta(obj, u.strict)
	if err != nil {
		return nil, &gvk, err
	}
	all = append(all, unknown...)
	if u.schema != nil {
		pruned, err := u.schema.Prune(obj.Object)
		if err != nil {
			return nil, &gvk, err
		}
		for _, path := range pruned {
			if u.strict {
				all = append(all, fmt.Errorf("unknown field %q", path))
			}
		}
	}
	if len(all) > 0 {
		return obj, &gvk, runtime.NewStrictDecodingError(all)
	}
	return obj, &gvk, nil
}

// CoerceMeta replaces the metadata of an object without a Go type by the fields
// that ObjectMeta has. It returns an error if a field has the wrong type, and with
// strict the fields that ObjectMeta does not have.
func CoerceMeta(obj *unstructured.Unstructured, strict bool) (unknown []error, err error) {
	sent, ok := obj.Object["metadata"]
	if !ok || sent == nil {
		delete(obj.Object, "metadata")
		return nil, nil
	}
	m, ok := sent.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("metadata: Invalid value: %T: must be an object", sent)
	}
	var typed metav1.ObjectMeta
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(m, &typed, strict)
	if se, ok := runtime.AsStrictDecodingError(err); ok {
		unknown = se.Errors()
	} else if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	obj.Object["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&typed)
	return unknown, err
}
