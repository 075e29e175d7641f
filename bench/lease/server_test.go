// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// server stands in for an API server and supports only leases.
type server struct {
	latency time.Duration
	codec   runtime.Codec
	down    atomic.Bool

	mu        sync.Mutex
	leases    map[string]*coordinationv1.Lease
	revision  int64
	renewals  map[int64]int // by Unix second
	requests  int
	inFlight  int
	mostAtOne int
	watchers  map[chan *coordinationv1.Lease]struct{}
}

// report is the server's statistics.
type report struct {
	Leases       int
	Requests     int
	MostInFlight int
	PerSecond    map[int64]int
}

// serve runs the server process. It prints its URL and certificate, and ends
// when its input ends.
func serve() error {
	latency, err := time.ParseDuration(os.Getenv("BENCH_LATENCY"))
	if err != nil {
		return err
	}
	proto := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	s := &server{
		latency:  latency,
		codec:    scheme.Codecs.CodecForVersions(proto, scheme.Codecs.UniversalDeserializer(), coordinationv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion),
		leases:   make(map[string]*coordinationv1.Lease),
		renewals: make(map[int64]int),
		watchers: make(map[chan *coordinationv1.Lease]struct{}),
	}
	web := httptest.NewUnstartedServer(s)
	web.EnableHTTP2 = true
	web.StartTLS()
	defer web.Close()
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"URL": web.URL, "Cert": web.Certificate().Raw}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/report":
		s.mu.Lock()
		defer s.mu.Unlock()
		json.NewEncoder(w).Encode(report{len(s.leases), s.requests, s.mostAtOne, s.renewals})
		return
	case r.URL.Path == "/down", r.URL.Path == "/up":
		s.down.Store(r.URL.Path == "/down")
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, leasesPath), "/")
	if r.URL.Query().Get("watch") != "" {
		s.watch(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.enter()
	defer s.leave()
	time.Sleep(s.latency)
	if s.down.Load() {
		s.fail(w, apierrors.NewServiceUnavailable("down"))
		return
	}
	if r.Method == http.MethodGet && name == "" {
		s.list(w)
		return
	}
	s.answer(w, r.Method, name, body)
}

func (s *server) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	s.inFlight++
	s.mostAtOne = max(s.mostAtOne, s.inFlight)
}

func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (s *server) answer(w http.ResponseWriter, method, name string, body []byte) {
	var sent *coordinationv1.Lease
	if len(body) > 0 {
		object, err := runtime.Decode(s.codec, body)
		if err != nil {
			s.fail(w, apierrors.NewBadRequest(err.Error()))
			return
		}
		sent = object.(*coordinationv1.Lease)
		name = sent.Name
	}
	stored, err := s.store(method, name, sent)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.write(w, http.StatusOK, stored)
}

// store executes one request under the lock. Stored objects are never changed,
// only replaced.
func (s *server) store(method, name string, sent *coordinationv1.Lease) (*coordinationv1.Lease, *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.leases[name]
	switch {
	case method == http.MethodGet && old == nil:
		return nil, apierrors.NewNotFound(resource, name)
	case method == http.MethodGet:
		return old, nil
	case method == http.MethodPost && old != nil:
		return nil, apierrors.NewAlreadyExists(resource, name)
	case method == http.MethodPut && (old == nil || sent.ResourceVersion != old.ResourceVersion):
		return nil, apierrors.NewConflict(resource, name, fmt.Errorf("changed"))
	case method == http.MethodPut:
		s.renewals[time.Now().Unix()]++
		sent.UID = old.UID
	default:
		sent.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", len(s.leases)))
		sent.CreationTimestamp = metav1.Now()
	}
	s.revision++
	sent.ResourceVersion = strconv.FormatInt(s.revision, 10)
	// The real server adds this field, which clients must transfer or strip.
	sent.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "bench", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "coordination.k8s.io/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:ownerReferences":{".":{}}},"f:spec":{"f:holderIdentity":{},"f:leaseDurationSeconds":{},"f:renewTime":{}}}`),
	}}
	s.leases[name] = sent
	for watcher := range s.watchers {
		select {
		case watcher <- sent:
		default: // a slow watcher misses events here
		}
	}
	return sent, nil
}

func (s *server) list(w http.ResponseWriter) {
	s.mu.Lock()
	list := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.revision, 10)}}
	for _, lease := range s.leases {
		list.Items = append(list.Items, *lease)
	}
	s.mu.Unlock()
	s.write(w, http.StatusOK, list)
}

// watch sends every change as JSON.
func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		s.fail(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		return
	}
	changes := make(chan *coordinationv1.Lease, 20_000)
	s.mu.Lock()
	s.watchers[changes] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, changes)
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	encoder := json.NewEncoder(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case lease := <-changes:
			event := *lease
			event.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
			kind := "MODIFIED"
			if lease.Spec.RenewTime == nil {
				kind = "ADDED"
			}
			if encoder.Encode(map[string]any{"type": kind, "object": &event}) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func (s *server) fail(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	json.NewEncoder(w).Encode(status)
}

func (s *server) write(w http.ResponseWriter, code int, object runtime.Object) {
	encoded, err := runtime.Encode(s.codec, object)
	if err != nil {
		s.fail(w, apierrors.NewInternalError(err))
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	w.WriteHeader(code)
	w.Write(encoded)
}
