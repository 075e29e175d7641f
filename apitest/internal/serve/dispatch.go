// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// Serve answers the request.
func (c *Call) Serve() *Answer {
	a, err := c.dispatch()
	if err != nil {
		a = c.Failure(err)
	} else {
		a.Warnings = c.warnings
	}
	for _, f := range c.Served {
		r := *c.r // a copy: the request is in the journal
		r.Code = a.Code
		f(&r)
	}
	return a
}

// maxBody is the size of a request's body, in bytes, that the server reads.
const maxBody = 3 << 20

func (c *Call) dispatch() (*Answer, error) {
	var ok bool
	if strings.TrimSuffix(c.r.Path, "/") == "/version" {
		return c.version()
	}
	if c.accept, ok = codec.Negotiate(c.r.Accept); !ok {
		return nil, notAcceptable()
	}
	if d := c.query.Get("timeout"); d != "" && c.r.Verb != "watch" {
		if _, err := time.ParseDuration(d); err != nil {
			return nil, apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
		}
	}
	if c.r.Resource == "" {
		return c.discover()
	}
	gv := schema.GroupVersion{Group: c.r.Group, Version: c.r.Version}
	if review := reviews(gv, c.r.Resource); review != nil {
		return c.review(review)
	}
	c.kind, c.view = c.s.lookup(gv, c.r.Resource)
	if c.kind == nil || !c.s.serves(gv) {
		return nil, c.s.unknown(gv, c.r.Resource)
	}
	if c.kind.Dynamic && c.accept.Proto && !c.accept.Partial {
		if c.accept, ok = codec.Negotiate(codec.WithoutProtobuf(c.r.Accept)); !ok {
			return nil, statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
				"only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf")
		}
	}
	if err := c.authorize(); err != nil {
		return nil, err
	}
	if w := c.kind.Views[c.view].Deprecation(c.kind, c.s.Minor); w != "" {
		c.warnings = append(c.warnings, w)
	}
	switch {
	case c.r.Nested && !c.kind.Namespaced, !c.r.Nested && c.kind.Namespaced && c.r.Named:
		return nil, notFound("")
	case c.r.Method == http.MethodHead, !c.r.Nested && c.kind.Namespaced && c.r.Verb != "list" && c.r.Verb != "watch":
		return nil, methodNotAllowed()
	case !c.accept.Serves(c.r.Verb):
		return nil, notAcceptable()
	}
	if c.r.Subresource != "" {
		sub, ok := c.kind.Subresource(c.r.Subresource)
		if !ok {
			return nil, notFound("")
		}
		if sub.Posted() {
			return c.special()
		}
		if sub.Scale {
			return c.scale()
		}
		if !slices.Contains(sub.Verbs(), c.r.Verb) {
			return nil, methodNotAllowed()
		}
	}
	if len(c.r.Body) > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	switch c.r.Verb {
	case "get":
		return c.get()
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	case "create":
		return c.create()
	case "update":
		return c.update()
	case "patch":
		return c.patch()
	case "delete":
		return c.delete()
	case "deletecollection":
		return c.deleteCollection()
	}
	return nil, methodNotAllowed()
}

// posted are the functions for the subresources that a client creates.
var posted = map[string]func(c *Call) (*Answer, error){
	"pods/binding": bind, "pods/eviction": evict, "serviceaccounts/token": requestToken,
}

// special serves a subresource that a client creates.
func (c *Call) special() (*Answer, error) {
	if c.r.Verb != "create" {
		return nil, methodNotAllowed()
	}
	return posted[c.r.Resource+"/"+c.r.Subresource](c)
}
