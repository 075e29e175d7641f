// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
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
		unknown bool
	}{
		"success":                       {corev1.HTTPGetAction{Path: "/ok?a=b", Port: intstr.FromString("web")}, true, false, false},
		"failure":                       {corev1.HTTPGetAction{Path: "/fails", Port: intstr.FromInt(port(plain))}, false, false, false},
		"no such port":                  {corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromString("other")}, false, false, true},
		"TLS without a name":            {corev1.HTTPGetAction{Path: "ok", Port: intstr.FromInt(port(secure)), Scheme: corev1.URISchemeHTTPS}, true, false, false},
		"a redirect":                    {corev1.HTTPGetAction{Path: "/near", Port: intstr.FromString("web")}, true, false, false},
		"a redirect to a failure":       {corev1.HTTPGetAction{Path: "/near-failure", Port: intstr.FromString("web")}, false, false, false},
		"a redirect to another host":    {corev1.HTTPGetAction{Path: "/far", Port: intstr.FromString("web")}, true, true, false},
		"redirects that never end":      {corev1.HTTPGetAction{Path: "/circle", Port: intstr.FromString("web")}, false, false, false},
		"a host that does not resolve":  {corev1.HTTPGetAction{Path: "/ok", Host: "far.invalid", Port: intstr.FromString("web")}, false, false, false},
		"a host that is no host":        {corev1.HTTPGetAction{Path: "/ok", Host: "no host", Port: intstr.FromString("web")}, false, false, true},
		"another port than the servers": {corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromInt(0)}, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := target.probe(t.Context(), &corev1.Probe{TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{HTTPGet: &tc.action}})
			warned := errors.As(err, new(*warning))
			if (err == nil || warned) != tc.ok || warned != tc.warning || errors.Is(err, errUnknown) != tc.unknown {
				t.Errorf("%v, want success %v, warning %v, unknown %v", err, tc.ok, tc.warning, tc.unknown)
			}
		})
	}
	headers := []corev1.HTTPHeader{{Name: "host", Value: "name.example"}, {Name: "User-Agent", Value: "mine"}, {Name: "X-Two", Value: "a"}, {Name: "X-Two", Value: "b"}}
	err := target.get(t.Context(), &corev1.HTTPGetAction{Path: "/ok?a=b", Port: intstr.FromString("web"), HTTPHeaders: headers})
	if err != nil || host != "name.example" || query != "a=b" || seen.Get("User-Agent") != "mine" || len(seen.Values("X-Two")) != 2 || seen.Get("Accept") != "*/*" {
		t.Errorf("%v: host %q, query %q, headers %v", err, host, query, seen)
	}
	tcp := &corev1.Probe{TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}}
	if err := target.probe(t.Context(), tcp); err != nil {
		t.Errorf("TCP: %v", err)
	}
	plain.Close()
	if err := target.probe(t.Context(), tcp); err == nil || errors.Is(err, errUnknown) {
		t.Errorf("TCP to a port that is closed: %v", err)
	}
	tcp.TCPSocket.Port = intstr.FromString("other")
	if err := target.probe(t.Context(), tcp); !errors.Is(err, errUnknown) {
		t.Errorf("TCP to a port that the container does not have: %v", err)
	}
	target.host, tcp.TCPSocket.Port = "", intstr.FromString("web")
	if err := target.probe(t.Context(), tcp); !errors.Is(err, errUnknown) { // not the node
		t.Errorf("TCP to a pod without an address: %v", err)
	}
}

func TestHTTPHooksNeedAnyResponse(t *testing.T) {
	var seen []string // the last request
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(r.Header.Values("Authorization"), r.Header.Values("X-Other")...)
		if r.URL.Path == "/fails" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if r.URL.Path == "/far" {
			http.Redirect(w, r, "http://far.invalid/", http.StatusFound)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	closed := httptest.NewServer(handler)
	closed.Close()
	target := target{host: "127.0.0.1", spec: &corev1.Container{}}
	for name, tc := range map[string]struct {
		server *httptest.Server
		scheme corev1.URIScheme
		path   string
		ok     bool
		seen   []string
	}{
		"HTTP":                           {plain, corev1.URISchemeHTTP, "/", true, []string{"secret", "x"}},
		"HTTP, failure":                  {plain, corev1.URISchemeHTTP, "/fails", true, []string{"secret", "x"}},
		"HTTP, to another host":          {plain, corev1.URISchemeHTTP, "/far", true, []string{"secret", "x"}},
		"HTTPS":                          {secure, corev1.URISchemeHTTPS, "/", true, []string{"secret", "x"}},
		"HTTPS, failure":                 {secure, corev1.URISchemeHTTPS, "/fails", true, []string{"secret", "x"}},
		"HTTPS to a plain server":        {plain, corev1.URISchemeHTTPS, "/", true, []string{"x"}},
		"HTTPS to one, failure":          {plain, corev1.URISchemeHTTPS, "/fails", true, []string{"x"}},
		"a port that is closed":          {closed, corev1.URISchemeHTTP, "/", false, nil},
		"a port that is closed to HTTPS": {closed, corev1.URISchemeHTTPS, "/", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			seen = nil
			_, port, _ := net.SplitHostPort(tc.server.Listener.Addr().String())
			err := target.hook(t.Context(), &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: tc.path, Port: intstr.FromString(port), Scheme: tc.scheme,
				HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: "secret"}, {Name: "X-Other", Value: "x"}},
			}})
			if (err == nil) != tc.ok || !slices.Equal(seen, tc.seen) {
				t.Errorf("%v, want success %v; the server has got %q, want %q", err, tc.ok, seen, tc.seen)
			}
		})
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
	target := target{host: "fd00::1", spec: &corev1.Container{}, grpc: g}
	err := target.probe(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 50051, Service: new("s")}}})
	if err == nil || !strings.Contains(err.Error(), "not serving") || *g != (grpcProber{"[fd00::1]:50051", "s"}) {
		t.Errorf("%v, called with %+v", err, g)
	}
	*g, target.host = grpcProber{}, "" // as before the pod has an address
	err = target.probe(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 50051}}})
	if !errors.Is(err, errUnknown) || *g != (grpcProber{}) {
		t.Errorf("without an address: %v, called with %+v", err, g)
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
