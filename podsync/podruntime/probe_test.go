// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestHTTPProbesStayOnTheirHost(t *testing.T) {
	var seen http.Header
	var host, query string
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { seen, host, query = r.Header, r.Host, r.URL.RawQuery })
	mux.HandleFunc("/fails", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/near", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/near-failure", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/fails", http.StatusFound) })
	mux.HandleFunc("/far", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://far.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/circle", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/circle", http.StatusFound) })
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	defer plain.Close()
	defer secure.Close()
	port := func(s *httptest.Server) int {
		_, text, _ := net.SplitHostPort(s.Listener.Addr().String())
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	target := target{host: "127.0.0.1", spec: &corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port(plain))}}}}
	for name, tc := range map[string]struct {
		action  corev1.HTTPGetAction
		ok      bool
		warning bool
	}{
		"success":                       {corev1.HTTPGetAction{Path: "/ok?a=b", Port: intstr.FromString("web")}, true, false},
		"failure":                       {corev1.HTTPGetAction{Path: "/fails", Port: intstr.FromInt(port(plain))}, false, false},
		"no such port":                  {corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromString("other")}, false, false},
		"TLS without a name":            {corev1.HTTPGetAction{Path: "ok", Port: intstr.FromInt(port(secure)), Scheme: corev1.URISchemeHTTPS}, true, false},
		"a redirect":                    {corev1.HTTPGetAction{Path: "/near", Port: intstr.FromString("web")}, true, false},
		"a redirect to a failure":       {corev1.HTTPGetAction{Path: "/near-failure", Port: intstr.FromString("web")}, false, false},
		"a redirect to another host":    {corev1.HTTPGetAction{Path: "/far", Port: intstr.FromString("web")}, true, true},
		"redirects that never end":      {corev1.HTTPGetAction{Path: "/circle", Port: intstr.FromString("web")}, false, false},
		"a host that does not resolve":  {corev1.HTTPGetAction{Path: "/ok", Host: "far.invalid", Port: intstr.FromString("web")}, false, false},
		"another port than the servers": {corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromInt(0)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := target.probe(t.Context(), &corev1.Probe{TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{HTTPGet: &tc.action}})
			warned := errors.As(err, new(*warning))
			if (err == nil || warned) != tc.ok || warned != tc.warning || errors.Is(err, errUnknown) {
				t.Errorf("%v, want success %v, warning %v", err, tc.ok, tc.warning)
			}
		})
	}
	headers := []corev1.HTTPHeader{{Name: "host", Value: "name.example"}, {Name: "User-Agent", Value: "mine"}, {Name: "X-Two", Value: "a"}, {Name: "X-Two", Value: "b"}}
	err := target.get(t.Context(), &corev1.HTTPGetAction{Path: "/ok?a=b", Port: intstr.FromString("web"), HTTPHeaders: headers}, sameHost)
	if err != nil || host != "name.example" || query != "a=b" || seen.Get("User-Agent") != "mine" || len(seen.Values("X-Two")) != 2 || seen.Get("Accept") != "*/*" {
		t.Errorf("%v: host %q, query %q, headers %v", err, host, query, seen)
	}
	hook := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromString("web"), Scheme: corev1.URISchemeHTTPS}}
	if err := target.hook(t.Context(), hook); err != nil {
		t.Errorf("a hook that says HTTPS to a plain server: %v", err)
	}
	tcp := &corev1.Probe{TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}}
	if err := target.probe(t.Context(), tcp); err != nil {
		t.Errorf("TCP: %v", err)
	}
	plain.Close()
	if err := target.probe(t.Context(), tcp); err == nil {
		t.Error("TCP to a port that is closed succeeded")
	}
}

// A grpcProber records its last call.
type grpcProber struct{ address, service string }

func (g *grpcProber) ProbeGRPC(_ context.Context, address, service string) error {
	g.address, g.service = address, service
	return errors.New("not serving")
}

func TestGRPCProbesAreHandedOn(t *testing.T) {
	g := &grpcProber{}
	target := target{host: "fd00::1", spec: &corev1.Container{}, p: &Provider{cfg: Config{GRPC: g}}}
	err := target.probe(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 50051, Service: new("s")}}})
	if err == nil || !strings.Contains(err.Error(), "not serving") || *g != (grpcProber{"[fd00::1]:50051", "s"}) {
		t.Errorf("%v, called with %+v", err, g)
	}
}

func TestAThresholdIsReachedOnce(t *testing.T) {
	p := &corev1.Probe{FailureThreshold: 2, SuccessThreshold: 1}
	var n tally
	for i, step := range []struct{ ok, want bool }{{false, false}, {false, true}, {false, false}, {true, true}, {true, false}, {false, false}, {true, true}} {
		if got := n.add(step.ok, p); got != step.want {
			t.Errorf("result %d: %v, want %v", i, got, step.want)
		}
	}
}
