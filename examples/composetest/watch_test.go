// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package composetest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// A watch is the body of a response that goes on. Its Read waits on channels and
// timers alone, so that time in a bubble moves on meanwhile.
type watch struct {
	key    objectKey // name empty: all; namespace empty: of all namespaces
	field  string    // the field selector
	server *server
	done   <-chan struct{} // of the request
	broken chan struct{}   // closed when the connection breaks
	more   chan struct{}   // there is something to read

	mu  sync.Mutex
	buf bytes.Buffer
}

// watch begins a watch with what there is: that is how client-go's informers
// ask (sendInitialEvents). One that goes on from a resource version is told that
// it is too old, and lists anew; who needs less traffic keeps a history.
func (s *server) watch(req *http.Request, key objectKey) io.ReadCloser {
	query := req.URL.Query()
	w := &watch{
		key: key, field: query.Get("fieldSelector"), server: s,
		done: req.Context().Done(), broken: make(chan struct{}), more: make(chan struct{}, 1),
	}
	if query.Get("sendInitialEvents") != "true" && query.Get("resourceVersion") != strconv.Itoa(s.version) {
		w.send("ERROR", &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Status", "status": metav1.StatusFailure,
			"code": int64(http.StatusGone), "reason": string(metav1.StatusReasonExpired), "message": "too old resource version",
		}})
	}
	if query.Get("sendInitialEvents") == "true" {
		for k, obj := range s.objects {
			if w.wants(k, obj) {
				w.send("ADDED", obj)
			}
		}
		end := &unstructured.Unstructured{}
		end.SetGroupVersionKind(kinds[key.resource].GroupVersionKind)
		end.SetResourceVersion(strconv.Itoa(s.version))
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		w.send("BOOKMARK", end)
	}
	s.watches[w] = struct{}{}
	return w
}

// wants reports whether the watch is about an object.
func (w *watch) wants(key objectKey, obj *unstructured.Unstructured) bool {
	if key.resource != w.key.resource || w.key.namespace != "" && key.namespace != w.key.namespace || w.key.name != "" && key.name != w.key.name {
		return false
	}
	for term := range strings.SplitSeq(w.field, ",") {
		path, want, found := strings.Cut(term, "=")
		if got, _, _ := unstructured.NestedString(obj.Object, strings.Split(path, ".")...); found && got != want {
			return false
		}
	}
	return true
}

func (w *watch) send(event string, obj *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// What can be stored can be encoded.
	_ = json.NewEncoder(&w.buf).Encode(map[string]any{"type": event, "object": obj})
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// Read implements io.Reader.
func (w *watch) Read(p []byte) (int, error) {
	for {
		w.mu.Lock()
		n, _ := w.buf.Read(p)
		w.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-w.more:
		case <-w.broken:
			return 0, syscall.ECONNRESET
		case <-w.done:
			return 0, io.EOF
		}
	}
}

// Close implements io.Closer.
func (w *watch) Close() error {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	delete(w.server.watches, w)
	return nil
}

// The functions below are for tests: what others do to objects, without a
// request.

// keyOf returns where an object is kept.
func keyOf(obj runtime.Object) (objectKey, *unstructured.Unstructured) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		panic(err)
	}
	gvks, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		panic(err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(gvks[0])
	return objectKey{strings.ToLower(gvks[0].Kind) + "s", u.GetNamespace(), u.GetName()}, u
}

// put creates an object, status and all.
func put[T runtime.Object](s *server, obj T) T {
	key, u := keyOf(obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	return typed[T](s.store(key, "ADDED", u))
}

// get returns an object, which like holds the namespace and name of, and false
// where there is none.
func get[T runtime.Object](s *server, like T) (T, bool) {
	key, _ := keyOf(like)
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.objects[key]
	if u == nil {
		return like, false
	}
	return typed[T](u), true
}

// edit changes an object.
func edit[T runtime.Object](s *server, like T, change func(T)) {
	key, _ := keyOf(like)
	s.mu.Lock()
	defer s.mu.Unlock()
	obj := typed[T](s.objects[key])
	change(obj)
	_, u := keyOf(obj)
	s.store(key, "MODIFIED", u)
}

func typed[T runtime.Object](u *unstructured.Unstructured) T {
	obj, err := scheme.Scheme.New(u.GroupVersionKind())
	if err != nil {
		panic(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
		panic(err)
	}
	return obj.(T)
}
