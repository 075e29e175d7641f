// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest/internal/request"
)

func (c *Call) authorize() error { return c.authorizeAs(c.r.Verb) }

// authorizeCreate authorizes the creation by a PUT of a missing object.
func (c *Call) authorizeCreate() error { return c.authorizeAs("create") }

func (c *Call) authorizeAs(verb string) error {
	if c.r.User.In(request.GroupMasters) {
		return nil // before the copy, which is an allocation
	}
	r := *c.r
	r.Verb = verb
	if r.Method == http.MethodPost && r.Subresource == "" {
		r.Name = "" // the real server authorizes before it reads the body
	}
	if ok, reason := c.s.allowed(&r); !ok {
		return forbidden(&r, reason)
	}
	return nil
}

// allowed asks the authorizer. The administrator may do everything.
func (s *Server) allowed(r *request.Request) (bool, string) {
	if r.User.In(request.GroupMasters) {
		return true, ""
	}
	s.mu.Lock()
	allows := s.allows
	s.mu.Unlock()
	if allows != nil {
		return allows(r)
	}
	if _, ok := r.User.Node(); ok {
		return s.Node().Allows(r)
	}
	return true, ""
}

// forbidden returns a 403 with the message of the real server.
func forbidden(r *request.Request, reason string) error {
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
	return apierrors.NewForbidden(r.GroupResource(), r.Name, errors.New(msg))
}

// admit calls the admission plugins for a write. old is nil for a creation.
// The store must be locked.
func (c *Call) admit(w *write, obj, old runtime.Object) error {
	if c.kind.Admit != nil {
		if err := c.kind.Admit(&w.rules, obj, old); err != nil {
			return err
		}
	}
	return c.restrict(obj, old)
}

// admitDelete is admit for a deletion.
func (c *Call) admitDelete(old runtime.Object) error {
	return c.restrict(nil, old)
}

// forbidden is the error of an admission plugin.
func (c *Call) forbidden(name, format string, args ...any) error {
	return apierrors.NewForbidden(c.resource(), name, fmt.Errorf(format, args...))
}

// restrict is the admission plugin NodeRestriction. obj is nil for a deletion, old for a
// creation. The store must be locked.
func (c *Call) restrict(obj, old runtime.Object) error {
	if c.kind.Dynamic {
		return nil
	}
	return c.s.Node().Restrict(c.r, c.resource(), obj, old)
}
