// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import "slices"

// User is who a client says it is. The server believes it: authentication is
// not what these tests are about, authorization is.
type User struct {
	Name   string
	Groups []string
}

// Groups that the API server itself gives a meaning to.
const (
	groupMasters         = "system:masters"
	groupNodes           = "system:nodes"
	groupAuthenticated   = "system:authenticated"
	groupServiceAccounts = "system:serviceaccounts"

	nodeUserPrefix           = "system:node:"
	serviceAccountUserPrefix = "system:serviceaccount:"
)

// Admin may do everything, as a member of system:masters.
var Admin = User{Name: "kubernetes-admin", Groups: []string{groupMasters, groupAuthenticated}}

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

// In reports whether the user is a member of group.
func (u User) In(group string) bool { return slices.Contains(u.Groups, group) }

// nodeName returns the node a kubelet identity stands for. Like the Node
// authorizer it wants both the user name and the group.
func (u User) nodeName() (string, bool) {
	if len(u.Name) <= len(nodeUserPrefix) || u.Name[:len(nodeUserPrefix)] != nodeUserPrefix || !u.In(groupNodes) {
		return "", false
	}
	return u.Name[len(nodeUserPrefix):], true
}
