// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// FuzzRequests sends requests that no client library would: whatever the bytes,
// the server answers, and with a code that says whose fault it was.
func FuzzRequests(f *testing.F) {
	const node = "/api/v1/nodes/n"
	f.Add("PATCH", node, "", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	f.Add("PATCH", node, "", "application/json-patch+json", []byte(`[{"op":"add","path":"/metadata/labels","value":{}},{"op":"move","from":"/metadata/labels","path":"/metadata/annotations"}]`))
	f.Add("PATCH", node+"/status", "fieldValidation=Strict", "application/strategic-merge-patch+json", []byte(`{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}`))
	f.Add("PUT", node, "dryRun=All", "application/json", []byte(`{"metadata":{"name":"n"}}`))
	f.Add("POST", "/api/v1/nodes", "", "application/vnd.kubernetes.protobuf", []byte("k8s\x00\x0a\x0a\x0a\x02v1\x12\x04Node"))
	f.Add("GET", "/api/v1/pods", "limit=1&continue=eyJydiI6MX0&labelSelector=a in (b)&fieldSelector=spec.nodeName!=n", "", []byte(nil))
	f.Add("DELETE", node, "gracePeriodSeconds=-1&propagationPolicy=Orphan", "application/json", []byte(`{"preconditions":{"uid":"u"}}`))
	f.Add("PATCH", node, "fieldManager=m&force=true", "application/apply-patch+yaml", []byte("apiVersion: v1\nkind: Node\nmetadata: {labels: {a: b}, finalizers: [x/y]}\nstatus: {phase: Running}"))
	f.Add("PATCH", node+"/status", "fieldManager=m", "application/apply-patch+yaml", []byte(`{"apiVersion":"v1","kind":"Node","status":{"conditions":[{"type":"Ready","status":"True"}]}}`))
	f.Add("PATCH", "/apis/example.com/v1/namespaces/default/widgets/w", "fieldManager=m", "application/apply-patch+yaml", []byte(`{"apiVersion":"example.com/v1","kind":"Widget","spec":{"a":[1,{"b":null}]}}`))
	f.Add("POST", "/apis/example.com/v1/namespaces/default/widgets", "", "application/json", []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"v","labels":7},"status":[]}`))
	f.Add("PUT", "/apis/example.com/v1/namespaces/default/widgets/w/status", "", "application/json", []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","resourceVersion":"1"},"status":{"ready":1}}`))
	f.Add("PATCH", "/apis/example.com/v1/namespaces/default/widgets/w", "", "application/json-patch+json", []byte(`[{"op":"replace","path":"/metadata","value":[]}]`))
	f.Add("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", "application/json", []byte(`{"metadata":{"name":"a.b"},"spec":{"group":"b","scope":"Cluster","names":{"plural":"a","kind":"A"},"versions":[{"name":"v1","storage":true,"served":true}]}}`))
	f.Add("POST", "/apis/apps/v1/namespaces/default/deployments", "", "application/json", []byte(`{"metadata":{"name":"d"},"spec":{"replicas":1}}`))
	f.Add("DELETE", node, "", "application/json", []byte(`{"apiVersion":"v1","kind":"Node"}`))
	f.Add("GET", "/apis//v1/namespaces//a/b/c/d/e/f/g", "%", "", []byte(nil))
	f.Fuzz(func(t *testing.T, method, path, query, contentType string, body []byte) {
		if strings.Contains(query, "watch") || strings.Contains(query, "resourceVersion") {
			return // these may wait
		}
		s := apitest.New(apitest.Options{Kinds: []apitest.Kind{{GroupVersionKind: widgetKind}}})
		w := widget("w", 1)
		w.SetNamespace("default")
		s.Put(w)
		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		req := &http.Request{
			Method: method, URL: &url.URL{Scheme: "http", Host: "h", Path: path, RawQuery: query}, Header: http.Header{"Content-Type": {contentType}},
			Body: io.NopCloser(strings.NewReader(string(body))), ContentLength: int64(len(body)),
		}
		resp, err := s.Config(apitest.User{}).Transport.RoundTrip(req.WithContext(context.Background()))
		if err != nil {
			return // not even a URL
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode < 200 || resp.StatusCode > 599 {
			t.Errorf("%d %v", resp.StatusCode, err)
		}
		if n := apitest.Get[*corev1.Node](s, "", "n"); n != nil && (n.UID == "" || n.Name != "n") {
			t.Errorf("the node is broken: %+v", n.ObjectMeta)
		}
	})
}
