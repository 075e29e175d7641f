// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"slices"
)

// User is the identity of a client. The server does not authenticate it. The
// zero User is the administrator kubernetes-admin, a member of system:masters,
// whose requests are allowed without a call of the Authorizer.
type User struct {
	Name   string
	Groups []string
}

// Groups that have a meaning for the API server.
const (
	groupMasters         = "system:masters"
	groupNodes           = "system:nodes"
	groupAuthenticated   = "system:authenticated"
	groupServiceAccounts = "system:serviceaccounts"

	nodeUserPrefix           = "system:node:"
	serviceAccountUserPrefix = "system:serviceaccount:"
)

// admin is the identity that a zero User stands for.
var admin = User{Name: "kubernetes-admin", Groups: []string{groupMasters, groupAuthenticated}}

// NodeUser is the identity of a kubelet: user system:node:NAME in group
// system:nodes.
func NodeUser(nodeName string) User {
	return User{Name: nodeUserPrefix + nodeName, Groups: []string{groupNodes, groupAuthenticated}}
}

// ServiceAccountUser is the identity of a pod that uses the named
// ServiceAccount.
func ServiceAccountUser(namespace, name string) User {
	return User{
		Name:   serviceAccountUserPrefix + namespace + ":" + name,
		Groups: []string{groupServiceAccounts, groupServiceAccounts + ":" + namespace, groupAuthenticated},
	}
}

// orAdmin returns u, or admin if u is zero.
func (u User) orAdmin() User {
	if u.Name == "" && len(u.Groups) == 0 {
		return admin
	}
	return u
}

// in reports whether the user is a member of group.
func (u User) in(group string) bool { return slices.Contains(u.Groups, group) }

// nodeName returns the node name of a kubelet identity. As the Node authorizer
// does, it requires both the user name and the group.
func (u User) nodeName() (string, bool) {
	if len(u.Name) <= len(nodeUserPrefix) || u.Name[:len(nodeUserPrefix)] != nodeUserPrefix || !u.in(groupNodes) {
		return "", false
	}
	return u.Name[len(nodeUserPrefix):], true
}
