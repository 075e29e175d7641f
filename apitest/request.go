// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest/internal/codec"
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
	Done     bool          // false while the request (or its watch) is still running

	named  bool // the path has a name
	nested bool // the path has a namespace before the resource
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

// GroupResource is the group and plural resource of the request.
func (r Request) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
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

// parseRequest fills in what method, path, query and headers say, by the
// URL conventions of the Kubernetes API.
func parseRequest(r *Request, req *http.Request) url.Values {
	r.Method, r.Path, r.Query = req.Method, req.URL.Path, req.URL.RawQuery
	r.ContentType, r.Accept, r.UserAgent = req.Header.Get("Content-Type"), req.Header.Get("Accept"), req.Header.Get("User-Agent")
	var query url.Values
	if r.Query != "" {
		query = req.URL.Query() // drops malformed parameters, as the real server does
		r.LabelSelector, r.FieldSelector = query.Get("labelSelector"), query.Get("fieldSelector")
		r.FieldManager = query.Get("fieldManager")
		r.DryRun = len(query["dryRun"]) > 0
	}
	r.parsePath()
	r.Verb = strings.ToLower(r.Method)
	if r.Resource == "" {
		return query
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case !r.named && isSet(query, "watch"):
			r.Verb = "watch"
		case r.Name == "":
			r.Verb = "list"
		default:
			r.Verb = "get"
		}
		if r.Name == "" && r.FieldSelector != "" {
			// A list or watch of one name is authorized like a get of it.
			if sel, err := fields.ParseSelector(r.FieldSelector); err == nil {
				if name, ok := sel.RequiresExactMatch("metadata.name"); ok {
					r.Name = name
				}
			}
		}
	case http.MethodPost:
		r.Verb = "create"
	case http.MethodPut:
		r.Verb = "update"
	case http.MethodPatch:
		r.PatchType = types.PatchType(codec.MediaOf(r.ContentType))
	case http.MethodDelete:
		if r.Name == "" {
			r.Verb = "deletecollection"
		}
	}
	return query
}

// isSet reports whether a boolean parameter is true. Any value other than false
// and 0 counts, even an empty one.
func isSet(query url.Values, name string) bool {
	v, ok := query[name]
	return ok && len(v) > 0 && v[0] != "0" && !strings.EqualFold(v[0], "false")
}

// parsePath takes /api/V/... and /apis/G/V/... apart. A path that is none of
// these leaves Resource empty.
func (r *Request) parsePath() {
	rest, ok := strings.CutPrefix(r.Path, "/api/")
	if !ok {
		if rest, ok = strings.CutPrefix(r.Path, "/apis/"); !ok {
			return
		}
		if r.Group, rest, ok = strings.Cut(rest, "/"); !ok || r.Group == "" {
			return
		}
	}
	r.Version, rest, _ = strings.Cut(rest, "/")
	rest = strings.Trim(rest, "/")
	if rest == "" {
		return
	}
	var parts [6]string
	n := 0
	for p := range strings.SplitSeq(rest, "/") {
		if n < len(parts) {
			parts[n] = p
		}
		n++
	}
	p := parts[:min(n, len(parts))]
	// namespaces/NS/RESOURCE..., but namespaces/NS and namespaces/NS/status
	// are the Namespace object itself.
	if p[0] == "namespaces" && len(p) > 1 {
		r.Namespace = p[1]
		if len(p) > 2 && p[2] != "status" && p[2] != "finalize" {
			p, r.nested = p[2:], true
		}
	}
	r.Resource = p[0]
	if len(p) > 1 {
		r.Name, r.named = p[1], p[1] != ""
	}
	if len(p) > 2 {
		r.Subresource = strings.Join(p[2:], "/")
	}
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
	Func      func(Request) bool // asked last
}

func (m *Match) matches(r *Request) bool {
	switch {
	case m.User != "" && m.User != r.User.Name,
		m.Namespace != "" && m.Namespace != r.Namespace,
		m.Name != "" && m.Name != r.Name,
		m.Group == "core" && r.Group != "",
		m.Group != "" && m.Group != "core" && m.Group != r.Group:
		return false
	}
	if m.Verb != "" && m.Verb != r.Verb && !(strings.Contains(m.Verb, ",") && slices.Contains(strings.Split(m.Verb, ","), r.Verb)) {
		return false
	}
	if m.Resource != "" {
		resource, sub, _ := strings.Cut(m.Resource, "/")
		if resource != r.Resource || sub != "*" && sub != r.Subresource {
			return false
		}
	}
	return m.Func == nil || m.Func(*r)
}

// journal keeps the requests since it was last reset.
type journal struct {
	mu   sync.Mutex
	seq  int
	kept []*Request
}

// begin numbers and keeps a request.
func (j *journal) begin(r *Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	r.Seq = j.seq
	j.kept = append(j.kept, r)
}

// update changes a request that may be in the journal.
func (j *journal) update(r *Request, f func(*Request)) {
	j.mu.Lock()
	f(r)
	j.mu.Unlock()
}

// Requests returns the requests since the last ResetJournal that m matches, in
// the order in which they arrived. A long test should call ResetJournal at times,
// because every Request keeps its body.
func (s *Server) Requests(m Match) []Request {
	s.journal.mu.Lock()
	all := make([]Request, len(s.journal.kept))
	for i, r := range s.journal.kept {
		all[i] = *r
	}
	s.journal.mu.Unlock()
	return slices.DeleteFunc(all, func(r Request) bool { return !m.matches(&r) })
}

// ResetJournal forgets the requests so far. A request that is running is
// forgotten too.
func (s *Server) ResetJournal() {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.journal.kept = nil
}
