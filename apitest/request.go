// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
)

// Request is one request as the server saw it, and, in the journal, what became
// of it. It is a value: keeping it keeps nothing else alive but its body.
type Request struct {
	Seq  int       // 1 for the first request the server saw
	Time time.Time // when it arrived; virtual time inside a synctest bubble
	User User

	Method string // HTTP method
	Path   string // URL path without the query
	Query  string // raw query

	// Verb is the API verb: get, list, watch, create, update, patch, delete or
	// deletecollection, and for paths that are no resources the HTTP method in
	// lower case.
	Verb        string
	Group       string
	Version     string
	Resource    string // plural; empty for paths that are no resources
	Subresource string
	Namespace   string
	Name        string // from the path, else from a metadata.name field selector, else from a created body

	LabelSelector string
	FieldSelector string
	FieldManager  string
	DryRun        bool

	ContentType string
	Accept      string
	UserAgent   string
	PatchType   types.PatchType // for PATCH: the media type of the patch
	Body        []byte          // as sent; not to be changed

	Code     int           // HTTP status; 0 while running, or when no response was sent
	Duration time.Duration // from arrival to response; for a watch to its end
	Err      error         // the transport error the client got instead of a response
	Fault    string        // name of the injected fault that decided the answer
	Held     int           // changes that LagWatches, StallWatches or StallReads delayed, or left out of the answer
	Done     bool          // false while the request (or its watch) is still running
}

// String is for failure messages: who did what, when, with what result.
func (r Request) String() string {
	what := r.Path
	if r.Query != "" {
		what += "?" + r.Query
	}
	res := fmt.Sprint(r.Code)
	switch {
	case r.Err != nil:
		res = r.Err.Error()
	case !r.Done:
		res += " (running)"
	}
	return fmt.Sprintf("#%d %s %s %s %s -> %s", r.Seq, r.Time.Format("15:04:05.000"), r.User.Name, r.Verb, what, res)
}

// Object decodes the body as the API type it says it is, from JSON or
// protobuf. It is no use for patches; see Map.
func (r Request) Object() (runtime.Object, error) {
	obj, _, err := codec.MediaFor(r.ContentType).Decode(r.Body, nil, nil)
	return obj, err
}

// Map decodes a JSON body, above all that of a patch, without a type. A
// protobuf body is decoded by type first.
func (r Request) Map() (map[string]any, error) {
	body := r.Body
	if codec.MediaOf(r.ContentType) == codec.ProtobufType {
		obj, err := r.Object()
		if err != nil {
			return nil, err
		}
		if body, err = json.Marshal(obj); err != nil {
			return nil, err
		}
	}
	m := map[string]any{}
	return m, json.Unmarshal(body, &m)
}

// Match says which requests a fault, a count or a drop is about. Every
// non-empty field must match; the zero Match matches every request.
type Match struct {
	User string // user name
	Verb string // one verb or several with commas: "update,patch"
	// Group is the API group, "core" for the group without a name.
	Group string
	// Resource is a plural resource. "pods" means the main resource only,
	// "pods/status" the subresource, "pods/*" both.
	Resource  string
	Namespace string
	Name      string
	// Func is called last, on the goroutine of the client, for several requests at the same
	// time. It must not block. In a Fault it may use the server.
	Func func(Request) bool
}

// Requests returns the requests since the last ResetJournal that m matches, in
// the order in which they arrived. A long test should call ResetJournal at times,
// because every Request keeps its body.
func (s *Server) Requests(m Match) []Request {
	var matching []Request
	in, all := m.inner(), s.core.Journal.Kept()
	for i := range all {
		if in.Matches(&all[i]) {
			matching = append(matching, outer(&all[i]))
		}
	}
	return matching
}

// ResetJournal forgets the requests so far. A request that is running is
// forgotten too.
func (s *Server) ResetJournal() { s.core.Journal.Reset() }

// inner returns m for the packages that select requests.
func (m *Match) inner() request.Match {
	in := request.Match{User: m.User, Verb: m.Verb, Group: m.Group, Resource: m.Resource, Namespace: m.Namespace, Name: m.Name}
	if f := m.Func; f != nil {
		in.Func = func(r *request.Request) bool { return f(outer(r)) }
	}
	return in
}

// outer returns the exported form of a request.
func outer(r *request.Request) Request {
	return Request{
		Seq: r.Seq, Time: r.Time, User: User(r.User),
		Method: r.Method, Path: r.Path, Query: r.Query,
		Verb: r.Verb, Group: r.Group, Version: r.Version, Resource: r.Resource, Subresource: r.Subresource,
		Namespace: r.Namespace, Name: r.Name,
		LabelSelector: r.LabelSelector, FieldSelector: r.FieldSelector, FieldManager: r.FieldManager, DryRun: r.DryRun,
		ContentType: r.ContentType, Accept: r.Accept, UserAgent: r.UserAgent, PatchType: r.PatchType, Body: r.Body,
		Code: r.Code, Duration: r.Duration, Err: r.Err, Fault: r.Fault, Held: r.Held, Done: r.Done,
	}
}

// inner returns what an authorizer decides by.
func (r *Request) inner() *request.Request {
	return &request.Request{
		User: request.User(r.User), Method: r.Method, Path: r.Path,
		Verb: r.Verb, Group: r.Group, Version: r.Version, Resource: r.Resource, Subresource: r.Subresource,
		Namespace: r.Namespace, Name: r.Name, LabelSelector: r.LabelSelector, FieldSelector: r.FieldSelector,
	}
}
