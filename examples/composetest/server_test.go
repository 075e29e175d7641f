// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package composetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"
)

// kinds are what the server has. Add a row for each that your program uses.
var kinds = map[string]struct {
	schema.GroupVersionKind
	empty any // for strategic merge patches
}{
	"nodes":  {corev1.SchemeGroupVersion.WithKind("Node"), corev1.Node{}},
	"pods":   {corev1.SchemeGroupVersion.WithKind("Pod"), corev1.Pod{}},
	"leases": {coordinationv1.SchemeGroupVersion.WithKind("Lease"), coordinationv1.Lease{}},
	"events": {eventsv1.SchemeGroupVersion.WithKind("Event"), eventsv1.Event{}},
}

// A server is as much of an API server as a node needs, in memory: UIDs and
// resource versions, conflicts, preconditions, the status subresource, field
// selectors for spec.nodeName, graceful deletion of pods, watches. It is the
// other end of a client's transport, so that the client is the real one. It has
// no goroutines: requests run on those of their clients, and a watch waits in
// the Read of its response.
//
// What it has not: validation, authorization, admission, garbage collection and
// the controllers. Those want a real API server.
type server struct {
	mu       sync.Mutex
	version  int
	objects  map[objectKey]*unstructured.Unstructured
	watches  map[*watch]struct{}
	requests map[string]int // by method and resource, as "PATCH nodes/status"
	fault    func(*http.Request) error
}

type objectKey struct{ resource, namespace, name string }

func newServer() *server {
	return &server{objects: map[objectKey]*unstructured.Unstructured{}, watches: map[*watch]struct{}{}, requests: map[string]int{}}
}

// config is for clients of the server. JSON, because that is all it speaks.
func (s *server) config() *rest.Config {
	return &rest.Config{Host: "http://server.invalid", Transport: s, ContentConfig: rest.ContentConfig{
		ContentType: "application/json", AcceptContentTypes: "application/json",
	}}
}

// fail makes f decide about each request from now on: an error is what the
// transport fails with, and to wait for the request's context is to hang. Nil
// ends that. Watches that are open break if f is set.
func (s *server) fail(f func(*http.Request) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
	if f != nil {
		for w := range s.watches {
			close(w.broken)
		}
		clear(s.watches)
	}
}

// counted returns how many requests there were since the last call.
func (s *server) counted() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer clear(s.requests)
	return maps.Clone(s.requests)
}

// RoundTrip implements http.RoundTripper.
func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		if err := fault(req); err != nil {
			return nil, err
		}
	}
	var body []byte
	if req.Body != nil {
		defer req.Body.Close()
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key, subresource := parse(req.URL.Path)
	resource := strings.TrimSuffix(key.resource+"/"+subresource, "/")
	if req.URL.Query().Get("watch") != "" {
		s.requests["WATCH "+resource]++
		return respond(http.StatusOK, s.watch(req, key)), nil
	}
	s.requests[req.Method+" "+resource]++
	answer, err := s.serve(req, key, subresource, body)
	code := http.StatusOK
	if err != nil {
		status, ok := err.(apierrors.APIStatus)
		if !ok {
			status = apierrors.NewBadRequest(err.Error())
		}
		failure := status.Status()
		answer, code = &failure, int(failure.Code)
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return respond(code, io.NopCloser(bytes.NewReader(data))), nil
}

func respond(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

// parse takes the path of a request apart:
// /api/v1 or /apis/GROUP/VERSION, [/namespaces/NAMESPACE], /RESOURCE[/NAME[/SUBRESOURCE]].
func parse(path string) (key objectKey, subresource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	prefix := 2
	if parts[0] == "apis" {
		prefix = 3
	}
	parts = append(parts[min(len(parts), prefix):], "", "", "", "", "")
	if parts[0] == "namespaces" {
		key.namespace, parts = parts[1], parts[2:]
	}
	key.resource, key.name = parts[0], parts[1]
	return key, parts[2]
}

// serve answers all but watches.
func (s *server) serve(req *http.Request, key objectKey, subresource string, body []byte) (any, error) {
	kind, ok := kinds[key.resource]
	group := schema.GroupResource{Group: kind.Group, Resource: key.resource}
	if !ok {
		return nil, apierrors.NewNotFound(group, key.name)
	}
	old := s.objects[key]
	if old == nil && key.name != "" {
		return nil, apierrors.NewNotFound(group, key.name)
	}
	switch req.Method {
	case http.MethodGet:
		if key.name == "" {
			return s.list(req, key), nil
		}
		return old, nil
	case http.MethodPost:
		obj := &unstructured.Unstructured{}
		if err := json.Unmarshal(body, &obj.Object); err != nil {
			return nil, err
		}
		key.name = obj.GetName()
		if s.objects[key] != nil {
			return nil, apierrors.NewAlreadyExists(group, key.name)
		}
		obj.SetGroupVersionKind(kind.GroupVersionKind)
		obj.SetGeneration(1)
		return s.store(key, "ADDED", obj), nil
	case http.MethodPut, http.MethodPatch:
		data := body
		if req.Method == http.MethodPatch {
			original, err := json.Marshal(old)
			if err != nil {
				return nil, err
			}
			if req.Header.Get("Content-Type") != string(types.StrategicMergePatchType) {
				return nil, fmt.Errorf("this server has no %s", req.Header.Get("Content-Type"))
			}
			if data, err = strategicpatch.StrategicMergePatch(original, body, kind.empty); err != nil {
				return nil, err
			}
		}
		obj := &unstructured.Unstructured{}
		if err := json.Unmarshal(data, &obj.Object); err != nil {
			return nil, err
		}
		if version := obj.GetResourceVersion(); obj.GetUID() != old.GetUID() || version != "" && version != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(group, key.name, fmt.Errorf("it is another object, or has changed"))
		}
		keep := "status"
		if subresource == "status" {
			keep = "spec"
		}
		obj.Object[keep] = old.Object[keep]
		return s.store(key, "MODIFIED", obj), nil
	case http.MethodDelete:
		var opts metav1.DeleteOptions
		if err := json.Unmarshal(body, &opts); err != nil {
			return nil, err
		}
		if p := opts.Preconditions; p != nil && p.UID != nil && *p.UID != old.GetUID() {
			return nil, apierrors.NewConflict(group, key.name, fmt.Errorf("it is another object"))
		}
		return s.delete(key, old, opts.GracePeriodSeconds), nil
	}
	return nil, apierrors.NewMethodNotSupported(group, req.Method)
}

// store keeps obj and tells watches. What is stored is never changed.
func (s *server) store(key objectKey, event string, obj *unstructured.Unstructured) *unstructured.Unstructured {
	s.version++
	if obj.GetUID() == "" {
		obj.SetUID(types.UID(fmt.Sprintf("uid-%d", s.version)))
		obj.SetCreationTimestamp(metav1.Now())
	}
	obj.SetResourceVersion(strconv.Itoa(s.version))
	if event == "DELETED" {
		delete(s.objects, key)
	} else {
		s.objects[key] = obj
	}
	for w := range s.watches {
		if w.wants(key, obj) {
			w.send(event, obj)
		}
	}
	return obj
}

// delete removes an object, or marks a pod for whoever runs it.
func (s *server) delete(key objectKey, old *unstructured.Unstructured, grace *int64) *unstructured.Unstructured {
	obj := old.DeepCopy()
	if grace == nil {
		grace = new(int64(30))
	}
	if node, _, _ := unstructured.NestedString(obj.Object, "spec", "nodeName"); key.resource == "pods" && node != "" && *grace > 0 {
		if obj.GetDeletionTimestamp() == nil {
			now := metav1.Now()
			obj.SetDeletionTimestamp(&now)
			obj.SetDeletionGracePeriodSeconds(grace)
			return s.store(key, "MODIFIED", obj)
		}
		return old
	}
	return s.store(key, "DELETED", obj)
}

// list returns the objects that a request selects.
func (s *server) list(req *http.Request, key objectKey) any {
	selects := watch{key: key, field: req.URL.Query().Get("fieldSelector")}
	kind := kinds[key.resource]
	items := []*unstructured.Unstructured{}
	for k, obj := range s.objects {
		if selects.wants(k, obj) {
			items = append(items, obj)
		}
	}
	slices.SortFunc(items, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return map[string]any{
		"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind + "List", "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
	}
}
