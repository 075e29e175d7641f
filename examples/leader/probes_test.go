// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/tools/cache"
)

// stub is a part whose state the test sets.
type stub struct {
	failure error
	ready   chan struct{}
}

func (s *stub) Name() string              { return "stub" }
func (s *stub) Check(*http.Request) error { return s.failure }
func (s *stub) Ready() cache.DoneChecker  { return s }
func (s *stub) Done() <-chan struct{}     { return s.ready }
func (s *stub) get(h http.Handler, path string) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code
}

func TestProbes(t *testing.T) {
	s := &stub{ready: make(chan struct{})}
	p := &probes{parts: []part{s}}
	h := p.handler()
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 404} {
		if got := s.get(h, path); got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
	close(s.ready)
	s.failure = errors.New("stuck")
	p.metrics = http.NotFoundHandler()
	for path, want := range map[string]int{"/healthz": 503, "/readyz": 200} {
		if got := s.get(h, path); got != want {
			t.Errorf("GET %s later: %d, want %d", path, got, want)
		}
	}
}

// The program answers with the metrics of its election.
func TestMetrics(t *testing.T) {
	s := electionServer(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	a := stand(t, s, "a", "--probe-address", address)
	says(t, s, a, "counted")
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || !strings.Contains(string(body), `kubewright_election_leader{election="kubewright/example"} 1`) {
		t.Errorf("%v\n%s", err, body)
	}
	if err := a.Stop(); err != nil {
		t.Errorf("a ended with %v", err)
	}
}

// What runs ends when no probe can be answered, and returns its error.
func TestProbesAreAnsweredDuringTheRun(t *testing.T) {
	failure := errors.New("failure")
	p := &probes{address: "127.0.0.1:0"}
	if err := p.during(t.Context(), func(context.Context) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	p.address = "no address"
	if err := p.during(t.Context(), func(context.Context) error { t.Error("it runs"); return nil }); err == nil {
		t.Error("no error for an address that is none")
	}
	p.address = ""
	if err := p.during(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Errorf("%v", err)
	}
}
