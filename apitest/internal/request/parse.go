// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// Parse fills in what method, path, query and headers say, by the
// URL conventions of the Kubernetes API.
func Parse(r *Request, req *http.Request) url.Values {
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
		case !r.Named && IsSet(query, "watch"):
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

// IsSet reports whether a boolean parameter is true. Any value other than false
// and 0 counts, even an empty one.
func IsSet(query url.Values, name string) bool {
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
			p, r.Nested = p[2:], true
		}
	}
	r.Resource = p[0]
	if len(p) > 1 {
		r.Name, r.Named = p[1], p[1] != ""
	}
	if len(p) > 2 {
		r.Subresource = strings.Join(p[2:], "/")
	}
}
