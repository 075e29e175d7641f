// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"github.com/kubewright/kubewright/apitest/internal/authz"
)

// AnyOf returns an Authorizer that allows a request if one of list allows it, as
// a server with --authorization-mode=Node,RBAC does.
func AnyOf(list ...Authorizer) Authorizer {
	return AuthorizerFunc(func(s *Server, r Request) (bool, string) {
		reason := ""
		for _, a := range list {
			ok, why := a.Authorize(s, r)
			if ok {
				return true, ""
			}
			if reason == "" {
				reason = why
			}
		}
		return false, reason
	})
}

// RBACFrom returns an Authorizer that applies the ClusterRoles, Roles and
// bindings in YAML manifests. It ignores documents of other kinds. A binding to
// a role that is in no manifest grants nothing, as on a real server. It returns
// an error for a manifest that can't be decoded.
func RBACFrom(manifests ...[]byte) (Authorizer, error) {
	roles, err := authz.RBACFrom(manifests...)
	if err != nil {
		return nil, err
	}
	return AuthorizerFunc(func(_ *Server, r Request) (bool, string) { return roles.Allows(r.inner()), "" }), nil
}

// NodeRules is the Node authorizer. It allows a node identity to read the objects
// that pods bound to the node refer to, and to write its Node, its lease, the
// status of its pods and its ResourceSlices. It refuses all other users.
//
// The NodeRestriction admission plugin is always on. It further restricts the
// writes of node identities that an Authorizer has allowed.
var NodeRules Authorizer = nodeRules{}

type nodeRules struct{}

// Authorize implements Authorizer.
func (nodeRules) Authorize(s *Server, r Request) (bool, string) {
	return s.core.Node().Allows(r.inner())
}
