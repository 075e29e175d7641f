// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"github.com/kubewright/kubewright/apitest/internal/request"
)

// User is the identity of a client. The server does not authenticate it. The
// zero User is the administrator kubernetes-admin, a member of system:masters,
// whose requests are allowed without a call of the Authorizer.
type User struct {
	Name   string
	Groups []string
}

// NodeUser is the identity of a kubelet: user system:node:NAME in group
// system:nodes.
func NodeUser(nodeName string) User {
	return User{Name: request.NodeUserPrefix + nodeName, Groups: []string{request.GroupNodes, request.GroupAuthenticated}}
}

// ServiceAccountUser is the identity of a pod that uses the named
// ServiceAccount.
func ServiceAccountUser(namespace, name string) User {
	return User{
		Name:   request.ServiceAccountUserPrefix + namespace + ":" + name,
		Groups: []string{request.GroupServiceAccounts, request.GroupServiceAccounts + ":" + namespace, request.GroupAuthenticated},
	}
}
