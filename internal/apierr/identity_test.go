// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestNodeIdentity(t *testing.T) {
	forbidden := func(reason string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n2", errors.New(reason))
	}
	for name, tc := range map[string]struct {
		err  error
		user string
		ok   bool
	}{
		"authorizer": {
			forbidden(`User "system:node:n1" cannot get resource "nodes" in API group "" at the cluster scope: node 'n1' cannot read 'n2', only its own Node object`),
			"system:node:n1", true,
		},
		"admission":       {forbidden(`node "n1" is not allowed to modify node "n2"`), "system:node:n1", true},
		"wrapped":         {fmt.Errorf("patch: %w", forbidden(`node "n1" is not allowed to modify taints`)), "system:node:n1", true},
		"service account": {forbidden(`User "system:serviceaccount:kube-system:vk" cannot create resource "nodes"`), "system:serviceaccount:kube-system:vk", false},
		"says nothing":    {forbidden("not yours"), NodeUserPrefix, false},
		"another class":   {apierrors.NewBadRequest(`User "system:node:n1" cannot`), "", false},
		"none":            {nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			user, ok := NodeIdentity(tc.err)
			if ok != tc.ok || ok && user != tc.user {
				t.Errorf("NodeIdentity = %q, %v, want %q, %v", user, ok, tc.user, tc.ok)
			}
		})
	}
}
