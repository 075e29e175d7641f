// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package leasestub is an API server for benchmarks. It serves only Leases,
// over real HTTP/2 and TLS on loopback. It is cheap, so that a benchmark
// measures the client, and it is accurate where clients depend on it: UID,
// resourceVersion, 404 and 409. It runs in its own process, so that memory,
// goroutines and processor time of the benchmark are those of the client. Tests
// use package apitest instead.
package leasestub

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"
	mediaType  = "application/vnd.kubernetes.protobuf"

	controlPath = "/leasestub/"
)

// server is the stub server.
type server struct {
	http    *httptest.Server
	codec   runtime.Serializer
	latency time.Duration
	down    atomic.Bool

	mu       sync.Mutex
	begin    time.Time
	leases   map[string]*coordinationv1.Lease
	uids     int
	counts   Counts
	inFlight int
	versions int
}

// start starts a server that delays each request by latency.
func start(latency time.Duration) *server {
	s := &server{
		codec:   protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
		latency: latency,
		begin:   time.Now(),
		leases:  make(map[string]*coordinationv1.Lease),
	}
	s.http = httptest.NewUnstartedServer(s)
	s.http.EnableHTTP2 = true
	s.http.StartTLS()
	return s
}

// Counts are statistics since the server started or was last reset.
type Counts struct {
	// Requests is the number of requests.
	Requests int
	// MostAtOnce is the largest number of concurrent requests.
	MostAtOnce int
	// Writes is the number of accepted writes in each second.
	Writes []int
}

// control executes a command of the benchmark process.
func (s *server) control(w http.ResponseWriter, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch what {
	case "reset":
		s.begin, s.counts = time.Now(), Counts{MostAtOnce: s.inFlight}
	case "down", "up":
		s.down.Store(what == "down")
	}
	_ = json.NewEncoder(w).Encode(s.counts) // the client has gone
}

// ServeHTTP serves a request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if what, ok := strings.CutPrefix(r.URL.Path, controlPath); ok {
		s.control(w, what)
		return
	}
	s.enter(1)
	defer s.enter(-1)
	if s.latency > 0 {
		time.Sleep(s.latency)
	}
	if s.down.Load() {
		s.refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, leasesPath)
	if !ok {
		s.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	s.serve(w, r, strings.TrimPrefix(name, "/"))
}

func (s *server) enter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight += n
	s.counts.MostAtOnce = max(s.counts.MostAtOnce, s.inFlight)
	if n > 0 {
		s.counts.Requests++
	}
}

func (s *server) serve(w http.ResponseWriter, r *http.Request, name string) {
	var sent coordinationv1.Lease
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = s.codec.Decode(body, nil, &sent)
		}
		if err != nil {
			s.refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch stored := s.leases[name]; {
	case r.Method == http.MethodPost && s.leases[sent.Name] != nil:
		s.refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case r.Method == http.MethodPost:
		s.uids++
		sent.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.uids))
		s.store(w, http.StatusCreated, &sent)
	case stored == nil:
		s.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet:
		s.answer(w, http.StatusOK, stored)
	case r.Method == http.MethodPut && (sent.UID != stored.UID && sent.UID != "" || sent.ResourceVersion != stored.ResourceVersion):
		s.refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	case r.Method == http.MethodPut:
		sent.UID = stored.UID
		s.store(w, http.StatusOK, &sent)
	default:
		s.refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	}
}

// store stores a lease and answers with it.
func (s *server) store(w http.ResponseWriter, code int, lease *coordinationv1.Lease) {
	second := int(time.Since(s.begin) / time.Second)
	for len(s.counts.Writes) <= second {
		s.counts.Writes = append(s.counts.Writes, 0)
	}
	s.counts.Writes[second]++
	s.versions++
	lease.ResourceVersion = fmt.Sprint(s.versions)
	s.leases[lease.Name] = lease
	s.answer(w, code, lease)
}

func (s *server) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	s.answer(w, code, &metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
}

func (s *server) answer(w http.ResponseWriter, code int, obj runtime.Object) {
	kind := coordinationv1.SchemeGroupVersion.WithKind("Lease")
	if _, ok := obj.(*metav1.Status); ok {
		kind = corev1.SchemeGroupVersion.WithKind("Status")
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(code)
	_ = s.codec.Encode(obj, w) // the client has gone
}
