// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package request has the requests of an API server: how a method, a path and a query
// are read, which requests a fault is about, and the journal.
package request

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Request is one request, and what became of it. Its exported twin, apitest.Request, has
// the documentation of the fields.
type Request struct {
	Seq  int
	Time time.Time
	User User

	Method, Path, Query string

	Verb, Group, Version, Resource, Subresource, Namespace, Name string

	LabelSelector, FieldSelector, FieldManager string
	DryRun                                     bool

	ContentType, Accept, UserAgent string
	PatchType                      types.PatchType
	Body                           []byte

	Code     int
	Duration time.Duration
	Err      error
	Fault    string
	Held     int // changes that were kept from it
	Done     bool

	Named  bool // the path has a name
	Nested bool // the path has a namespace before the resource
}

// GroupResource returns the group and plural resource of the request.
func (r *Request) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}
