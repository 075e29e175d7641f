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
			user, ok := nodeIdentity(tc.err)
			if ok != tc.ok || ok && user != tc.user {
				t.Errorf("nodeIdentity = %q, %v, want %q, %v", user, ok, tc.user, tc.ok)
			}
		})
	}
}

func TestWrongNode(t *testing.T) {
	lease := func(reason string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "n2", errors.New(reason))
	}
	for name, tc := range map[string]struct {
		err      error
		identity string
		wrong    bool
	}{
		"another node":           {lease(`User "system:node:n1" cannot get resource "leases"`), "system:node:n1", true},
		"the node itself":        {lease(`User "system:node:n2" cannot get resource "leases"`), "system:node:n2", false},
		"a node without a name":  {lease("can only access node lease with the same name as the requesting node"), "", true},
		"a ServiceAccount":       {lease(`User "system:serviceaccount:a:b" cannot get resource "leases"`), "", false},
		"another reason":         {lease("not yours"), "", false},
		"another class of error": {apierrors.NewBadRequest("with the same name as the requesting node"), "", false},
	} {
		if identity, wrong := WrongNode(tc.err, "n2"); identity != tc.identity || wrong != tc.wrong {
			t.Errorf("%s: WrongNode = %q, %v, want %q, %v", name, identity, wrong, tc.identity, tc.wrong)
		}
	}
}
