// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package authz decides which requests are allowed: by roles and bindings, and by the rules
// for the identities of nodes. The latter are the Node authorizer, which sees a request, and
// the admission plugin NodeRestriction, which sees the object too.
package authz
