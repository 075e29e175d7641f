// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// Authorizer decides whether a request is allowed. The reason of a refusal
// goes into the 403. It is called without locks.
type Authorizer interface {
	Authorize(s *Server, r Request) (allowed bool, reason string)
}

// AuthorizerFunc is a function as an Authorizer.
type AuthorizerFunc func(s *Server, r Request) (bool, string)

// Authorize implements Authorizer.
func (f AuthorizerFunc) Authorize(s *Server, r Request) (bool, string) { return f(s, r) }

// AnyOf allows what one of the authorizers allows, in the manner of the
// server's --authorization-mode=Node,RBAC.
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

// trusting holds nodes to their rules and trusts everybody else.
type trusting struct{}

// Authorize implements Authorizer.
func (trusting) Authorize(s *Server, r Request) (bool, string) {
	if _, ok := r.User.nodeName(); ok {
		return NodeRules.Authorize(s, r)
	}
	return true, ""
}

func (s *Server) authorizerInUse() Authorizer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.authorizer == nil {
		return trusting{}
	}
	return s.authorizer
}

func (s *Server) authorize(c *call) error { return s.authorizeAs(c, c.r.Verb) }

// authorizeCreate asks again for a PUT that is going to create.
func (s *Server) authorizeCreate(c *call) error { return s.authorizeAs(c, "create") }

func (s *Server) authorizeAs(c *call, verb string) error {
	if c.r.User.in(groupMasters) {
		return nil
	}
	r := *c.r
	r.Verb = verb
	if r.Method == http.MethodPost && r.Subresource == "" {
		r.Name = "" // the server doesn't look into the body
	}
	ok, reason := s.authorizerInUse().Authorize(s, r)
	if ok {
		return nil
	}
	return forbidden(c, r, reason)
}

// forbidden words the refusal as the API server does.
func forbidden(c *call, r Request, reason string) error {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	msg := fmt.Sprintf("User %q cannot %s resource %q in API group %q", r.User.Name, r.Verb, resource, r.Group)
	if r.Namespace == "" {
		msg += " at the cluster scope"
	} else {
		msg += fmt.Sprintf(" in the namespace %q", r.Namespace)
	}
	if reason != "" {
		msg += ": " + reason
	}
	return apierrors.NewForbidden(r.groupResource(), r.Name, errors.New(msg))
}

// admit is what admission plugins have to say about a write; old is nil for a
// creation. The lock of the store is held.
func (s *Server) admit(c *call, obj, old runtime.Object) error {
	return s.nodeRestriction(c, obj, old)
}

// admitDelete is admit for a deletion.
func (s *Server) admitDelete(c *call, old runtime.Object) error {
	return s.nodeRestriction(c, nil, old)
}
