// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"slices"
)

// User is the identity of a client.
type User struct {
	Name   string
	Groups []string
}

// Groups that have a meaning for the API server.
const (
	GroupMasters         = "system:masters"
	GroupNodes           = "system:nodes"
	GroupAuthenticated   = "system:authenticated"
	GroupServiceAccounts = "system:serviceaccounts"

	NodeUserPrefix           = "system:node:"
	ServiceAccountUserPrefix = "system:serviceaccount:"
)

// Admin is the identity of the administrator, and of the server itself.
var Admin = User{Name: "kubernetes-admin", Groups: []string{GroupMasters, GroupAuthenticated}}

// OrAdmin returns u, or Admin if u is zero.
func (u User) OrAdmin() User {
	if u.Name == "" && len(u.Groups) == 0 {
		return Admin
	}
	return u
}

// In reports whether the user is a member of group.
func (u User) In(group string) bool { return slices.Contains(u.Groups, group) }

// Node returns the node name of a kubelet identity. As the Node authorizer
// does, it requires both the user name and the group.
func (u User) Node() (string, bool) {
	if len(u.Name) <= len(NodeUserPrefix) || u.Name[:len(NodeUserPrefix)] != NodeUserPrefix || !u.In(GroupNodes) {
		return "", false
	}
	return u.Name[len(NodeUserPrefix):], true
}
