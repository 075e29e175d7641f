// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NodeUserPrefix is the prefix of the user name in a node's credentials; the
// name of the node follows it.
const NodeUserPrefix = "system:node:"

// WrongNode reports whether err is a 403 because the client has the credentials of
// another node than nodeName. Identity is the user name of the client, for example
// system:node:n1, or empty if the answer does not name it.
func WrongNode(err error, nodeName string) (identity string, wrong bool) {
	if !apierrors.IsForbidden(err) {
		return "", false
	}
	if identity, ok := nodeIdentity(err); ok {
		return identity, identity != NodeUserPrefix+nodeName
	}
	return "", strings.Contains(err.Error(), nodeNameRule)
}

// nodeNameRule is a phrase in the refusals of both the Node authorizer and the
// admission plugin NodeRestriction.
const nodeNameRule = "with the same name as the requesting node"

// nodeIdentity returns the user name, for example system:node:n1, that the API
// server reports for the client, if err is a 403 for a node's credentials. The
// name appears only in the text of the answer: authorizers write User
// "system:node:n1" cannot …, and NodeRestriction writes node "n1" is not
// allowed to ….
func nodeIdentity(err error) (user string, ok bool) {
	if !apierrors.IsForbidden(err) {
		return "", false
	}
	if user, ok = quoted(err.Error(), `User "`, `" cannot`); ok {
		return user, strings.HasPrefix(user, NodeUserPrefix)
	}
	node, ok := quoted(err.Error(), `node "`, `" is not allowed to`)
	return NodeUserPrefix + node, ok
}

// quoted returns the text between the last start that precedes the first end,
// and that end.
func quoted(text, start, end string) (string, bool) {
	before, _, ok := strings.Cut(text, end)
	if !ok {
		return "", false
	}
	i := strings.LastIndex(before, start)
	if i < 0 {
		return "", false
	}
	return before[i+len(start):], true
}
