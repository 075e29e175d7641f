// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestRoundTrip(t *testing.T) {
	for _, line := range []string{
		"",
		"crash after @ controller: patch pods/status default/p1 #3",
		"503 @ update leases kube-node-lease/n1",
		"reset @ list nodes",
		"delete Pod default/p1 @ node: call start the container app of default/p1 #12",
		"lost @ a: create configmaps default/child-* #1 + crash before @ a: create configmaps default/child-* #2",
		"429 @ get /version #1",
	} {
		p, err := Parse(line)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if got := p.String(); got != line {
			t.Errorf("%q became %q", line, got)
		}
	}
}

func TestParts(t *testing.T) {
	p, err := Parse("  crash after  @  controller: patch pods/status  default/p1 #3 ")
	want := Hit{Fault: "crash after", Place: Place{Program: "controller", Verb: "patch", Target: "pods/status default/p1", Number: 3}}
	if err != nil || len(p) != 1 || p[0] != want {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, bad := range []string{"crash", "@ get pods", "crash @ ", "crash @ a: ", "503 @ get pods + ", " + "} {
		if p, err := Parse(bad); err == nil {
			t.Errorf("%q is %+v", bad, p)
		}
	}
}

func TestCovers(t *testing.T) {
	request := Place{"a", "get", "pods default/p", 2}
	for _, p := range []Place{request, {"", "get", "pods default/p", 2}, {"a", "get", "pods default/p", 0}} {
		if !p.Covers(request) {
			t.Errorf("%v does not cover %v", p, request)
		}
	}
	for _, p := range []Place{{"b", "get", "pods default/p", 2}, {"a", "list", "pods default/p", 2}, {"a", "get", "pods default/q", 2}, {"a", "get", "pods default/p", 1}} {
		if p.Covers(request) {
			t.Errorf("%v covers %v", p, request)
		}
	}
}

func TestOfRequest(t *testing.T) {
	for _, c := range []struct{ method, url, body, want string }{
		{"GET", "/api/v1/nodes", "", "list nodes"},
		{"GET", "/api/v1/nodes?watch=true", "", "watch nodes"},
		{"GET", "/api/v1/nodes?watch=false", "", "list nodes"},
		{"GET", "/api/v1/nodes/n1", "", "get nodes n1"},
		{"GET", "/api/v1/namespaces/default", "", "get namespaces default"},
		{"PATCH", "/api/v1/namespaces/default/status", "", "patch namespaces/status default"},
		{"GET", "/api/v1/namespaces/default/pods", "", "list pods default"},
		{"POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"p1"}}`, "create pods default/p1"},
		{"POST", "/api/v1/namespaces/default/pods", `{"metadata":{"generateName":"web-"}}`, "create pods default/web-*"},
		{"POST", "/api/v1/namespaces/default/pods", "k8s\x00", "create pods default"},
		{"POST", "/api/v1/namespaces/default/pods/p1/eviction", `{"metadata":{"name":"p1"}}`, "create pods/eviction default/p1"},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", "", "update leases kube-node-lease/n1"},
		{"DELETE", "/apis/apps/v1/namespaces/default/deployments/d", "", "delete deployments default/d"},
		{"DELETE", "/apis/apps/v1/namespaces/default/deployments", "", "deletecollection deployments default"},
		{"GET", "/version", "", "get /version"},
		{"GET", "/apis/apps/v1", "", "get /apis/apps/v1"},
	} {
		p := OfRequest(httptest.NewRequest(c.method, c.url, nil), []byte(c.body))
		if got := p.String(); got != c.want {
			t.Errorf("%s %s is %q, want %q", c.method, c.url, got, c.want)
		}
		if want := c.method != "GET"; p.IsWrite() != want {
			t.Errorf("%s %s is a write: %v", c.method, c.url, !want)
		}
	}
}

func TestNameInProtobuf(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"}}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("no protobuf")
	}
	body, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), pod)
	if err != nil {
		t.Fatal(err)
	}
	p := OfRequest(httptest.NewRequest("POST", "/api/v1/namespaces/default/pods", nil), body)
	if p.Target != "pods default/web-*" {
		t.Errorf("got %q", p)
	}
	if !IsUnconditional(body) {
		t.Error("it has no resourceVersion")
	}
}

func TestIsUnconditional(t *testing.T) {
	for body, want := range map[string]bool{
		`{"metadata":{"name":"p1"}}`: true, `{"metadata":{"resourceVersion":"3"}}`: false, `{}`: true, "no object": false, "": false,
	} {
		if got := IsUnconditional([]byte(body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}

func TestClean(t *testing.T) {
	text := Clean("start  x + y @ z: #3")
	line := "crash before @ p: call " + text + " #1"
	if p, err := Parse(line); err != nil || len(p) != 1 || p.String() != line {
		t.Errorf("%q is %v, %v", text, p, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("crash after @ controller: patch pods/status default/p1 #3 + 503 @ update leases kube-node-lease/n1")
	f.Fuzz(func(t *testing.T, line string) {
		p, err := Parse(line)
		if err != nil {
			return
		}
		again, err := Parse(p.String())
		if err != nil || again.String() != p.String() {
			t.Errorf("%q became %q and %q, %v", line, p, again, err)
		}
	})
}
