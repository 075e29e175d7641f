// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kubewright/kubewright/apitest/internal/request"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		method, url string
		want        request.Request
	}{
		{"GET", "/api/v1/pods", request.Request{Verb: "list", Version: "v1", Resource: "pods"}},
		{"GET", "/api/v1/pods?watch", request.Request{Verb: "watch", Version: "v1", Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=0", request.Request{Verb: "list", Version: "v1", Resource: "pods"}},
		{"GET", "/api/v1/namespaces/a/pods/b/status", request.Request{Verb: "get", Version: "v1", Resource: "pods", Subresource: "status", Namespace: "a", Name: "b", Named: true, Nested: true}},
		{"PUT", "/api/v1/namespaces/a/finalize", request.Request{Verb: "update", Version: "v1", Resource: "namespaces", Subresource: "finalize", Namespace: "a", Name: "a", Named: true}},
		{"POST", "/apis/coordination.k8s.io/v1/namespaces/a/leases", request.Request{Verb: "create", Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Namespace: "a", Nested: true}},
		{"DELETE", "/apis/apps/v1/namespaces/a/deployments", request.Request{Verb: "deletecollection", Group: "apps", Version: "v1", Resource: "deployments", Namespace: "a", Nested: true}},
		{"DELETE", "/api/v1/nodes/n", request.Request{Verb: "delete", Version: "v1", Resource: "nodes", Name: "n", Named: true}},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn", request.Request{Verb: "list", Version: "v1", Resource: "nodes", Name: "n", FieldSelector: "metadata.name=n"}},
		{"GET", "/healthz", request.Request{Verb: "get"}},
		{"GET", "/apis/apps", request.Request{Verb: "get", Group: "apps"}},
	} {
		var got request.Request
		request.Parse(&got, httptest.NewRequest(tt.method, tt.url, http.NoBody))
		if g, w := attributes(got), attributes(tt.want); g != w {
			t.Errorf("%s %s: %+v, want %+v", tt.method, tt.url, g, w)
		}
	}
}

type attribute struct {
	verb, group, version, resource, subresource, namespace, name, fields string
	named, nested                                                        bool
}

func attributes(r request.Request) attribute {
	return attribute{r.Verb, r.Group, r.Version, r.Resource, r.Subresource, r.Namespace, r.Name, r.FieldSelector, r.Named, r.Nested}
}

func TestMatch(t *testing.T) {
	r := &request.Request{User: request.User{Name: "u"}, Verb: "patch", Resource: "pods", Subresource: "status", Namespace: "ns", Name: "p"}
	for want, list := range map[bool][]request.Match{
		true: {{}, {Verb: "patch"}, {Verb: "update,patch"}, {Resource: "pods/status"}, {Resource: "pods/*"}, {Group: "core"}, {User: "u", Namespace: "ns", Name: "p"},
			{Func: func(r *request.Request) bool { return r.Name == "p" }}},
		false: {{Verb: "get"}, {Verb: "update,get"}, {Resource: "pods"}, {Resource: "nodes"}, {Group: "apps"}, {User: "v"}, {Namespace: "x"}, {Name: "q"},
			{Func: func(*request.Request) bool { return false }}},
	} {
		for _, m := range list {
			if m.Matches(r) != want {
				t.Errorf("%+v matches: %v", m, !want)
			}
		}
	}
}
