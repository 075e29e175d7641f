// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"

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
