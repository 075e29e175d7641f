// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/rules"
)

// Register makes the server serve a kind. Registering a kind again replaces the
// kind and keeps its objects. Register panics if every server has the kind.
func (s *Server) Register(k Kind) {
	if k.Kind == "" || k.Version == "" {
		panic("apitest: Register: a kind without a version or a name: " + k.GroupVersionKind.String())
	}
	if k.Resource == "" {
		plural, _ := meta.UnsafeGuessKindToResource(k.GroupVersionKind)
		k.Resource = plural.Resource
	}
	c := rules.DynamicKind(k.Kind, k.Resource, !k.ClusterScoped, !k.NoStatus, k.GroupVersion())
	if k.Type != nil {
		c.GoType = reflect.TypeOf(k.Type)
	}
	s.core.Register(c)
}

// Schema is the schema of one version of a custom resource. See Options.Schemas. An
// object is passed as its content in JSON, in which a whole number is an int64. The
// methods may be called concurrently, each with its own object, and must not use the
// server.
type Schema interface {
	// Prune removes the fields that the schema does not have, except those of metadata
	// and the type. It returns their paths: as warnings to the client, or with
	// fieldValidation=Strict as the error. If err is not nil, the request is refused.
	Prune(obj map[string]any) (unknown []string, err error)
	// Default sets the default values of fields that obj lacks. It is called more than
	// once for a write, and for the objects of Server.Put.
	Default(obj map[string]any)
	// Validate returns the errors in obj, which replaces old. On create, old is nil.
	// The subresource is "status" for a write of /status, otherwise empty. Validate must
	// not change obj and old.
	Validate(obj, old map[string]any, subresource string) field.ErrorList
}

// compiler returns Options.Schemas with the types of package rules.
func compiler(f func(*unstructured.Unstructured) (map[string]Schema, field.ErrorList)) rules.Compiler {
	if f == nil {
		return nil
	}
	return func(definition *unstructured.Unstructured) (map[string]rules.Schema, field.ErrorList) {
		schemas, errs := f(definition)
		out := make(map[string]rules.Schema, len(schemas))
		for version, s := range schemas {
			out[version] = s
		}
		return out, errs
	}
}
