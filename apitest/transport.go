// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/fault"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/serve"
)

// New returns a server.
func New(opts Options) *Server {
	if opts.Version == "" {
		opts.Version = "v1.37.2"
	}
	if opts.History == 0 {
		opts.History = 4096
	}
	s := &Server{core: serve.New(serve.Options{Version: opts.Version, ManagedFields: opts.ManagedFields, History: opts.History, Seed: opts.Seed, Schemas: compiler(opts.Schemas)})}
	s.Authorize(opts.Authorizer)
	for g, on := range opts.Gates {
		s.SetGate(g, on)
	}
	for _, k := range opts.Kinds {
		s.Register(k)
	}
	for _, gv := range opts.Serve {
		s.Serve(gv, true)
	}
	for _, gv := range opts.Refuse {
		s.Serve(gv, false)
	}
	for _, ns := range append([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}, opts.Namespaces...) {
		s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	for _, class := range rules.SystemClasses() {
		s.Put(class)
	}
	s.Compact() // no client can have read an earlier state
	return s
}

// Config returns a client configuration for user, without a client-side rate
// limit. The caller may change it: content types, Timeout, QPS, UserAgent and
// Wrap work as with a real server.
func (s *Server) Config(user User) *rest.Config {
	return &rest.Config{
		Host:      "http://apitest.invalid",
		Transport: &transport{server: s, user: request.User(user).OrAdmin()},
		QPS:       -1,
		UserAgent: "apitest",
	}
}

// Client returns a clientset for user.
func (s *Server) Client(user User) *kubernetes.Clientset {
	return kubernetes.NewForConfigOrDie(s.Config(user))
}

// transport carries the requests of one user to the server.
type transport struct {
	server *Server
	user   request.User
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.server.roundTrip(t.user, req)
	if trace := httptrace.ContextClientTrace(req.Context()); resp != nil && trace != nil && trace.GotFirstResponseByte != nil {
		trace.GotFirstResponseByte() // as the transport of net/http does
	}
	if resp != nil {
		resp.Request = req // client-go reads it after a 415
	}
	return resp, err
}

// CloseIdleConnections does nothing. client-go calls it.
func (*transport) CloseIdleConnections() {}

// CancelRequest does nothing.
func (*transport) CancelRequest(*http.Request) {}

func (s *Server) roundTrip(user request.User, req *http.Request) (*http.Response, error) {
	body, err := readBody(req)
	if err != nil {
		return nil, err
	}
	ctx := req.Context()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &request.Request{Time: time.Now(), User: user, Body: body}
	query := request.Parse(r, req)
	if r.Verb == "create" && !r.Named {
		r.Name = s.core.BodyName(r)
	}
	if request.IsTrial(ctx) {
		r.DryRun = true
		return s.finish(r, nil, s.core.Call(ctx, r, query).Serve())
	}
	s.core.Journal.Begin(r)
	call := s.core.Call(ctx, r, query)

	latency, f, served := s.faults.Take(r)
	call.Served = served
	if latency > 0 {
		if err := request.Sleep(ctx, latency); err != nil {
			return s.fail(r, f, err)
		}
	}
	if f == nil {
		return s.finish(r, nil, call.Serve())
	}
	switch {
	case f.Answer != nil:
		resp, err := f.Answer(r)
		if err != nil {
			return s.fail(r, f, err)
		}
		s.core.Journal.Update(r, func(r *request.Request) {
			r.Code, r.Fault, r.Done, r.Duration = resp.StatusCode, f.Name, true, time.Since(r.Time)
		})
		return resp, nil
	case f.Status != nil:
		return s.finish(r, f, call.Failure(f.Status))
	case f.Err != nil:
		return s.fail(r, f, f.Err)
	case f.Hang:
		return s.fail(r, f, fault.Hang(ctx))
	case f.Malformed:
		return s.finish(r, f, &serve.Answer{Code: http.StatusOK, ContentType: codec.JSONType, Body: []byte(`{"kind": <html>`)})
	case f.CommitAfter > 0:
		return s.commitLate(ctx, call, r, f)
	}
	a := call.Serve()
	if a.Stream != nil {
		a.Stream.Close()
	}
	if f.HangResponse {
		return s.fail(r, f, fault.Hang(ctx))
	}
	return s.fail(r, f, ErrConnReset)
}

// commitLate serves a request after f.CommitAfter, even if the client has given
// up. The timer needs no goroutine before it fires.
func (s *Server) commitLate(ctx context.Context, c *serve.Call, r *request.Request, f *fault.Fault) (*http.Response, error) {
	done := make(chan *serve.Answer, 1)
	late := c.Late() // of a copy of r, because fail writes into r when the client gives up
	time.AfterFunc(f.CommitAfter, func() { done <- late.Serve() })
	select {
	case a := <-done:
		return s.finish(r, f, a)
	case <-ctx.Done():
		return s.fail(r, f, ctx.Err())
	}
}

// fail ends a request without a response.
func (s *Server) fail(r *request.Request, f *fault.Fault, err error) (*http.Response, error) {
	s.core.Journal.Update(r, func(r *request.Request) {
		r.Err, r.Done, r.Duration = err, true, time.Since(r.Time)
		if f != nil {
			r.Fault = f.Name
		}
	})
	return nil, err
}

// finish turns an answer into a response.
func (s *Server) finish(r *request.Request, f *fault.Fault, a *serve.Answer) (*http.Response, error) {
	s.core.Journal.Update(r, func(r *request.Request) {
		r.Code = a.Code
		if f != nil {
			r.Fault = f.Name
		}
		if a.Stream == nil {
			r.Done, r.Duration = true, time.Since(r.Time)
		}
	})
	h := make(http.Header, 2)
	h["Content-Type"] = []string{a.ContentType}
	for _, w := range a.Warnings {
		h.Add("Warning", "299 - "+strconv.Quote(w))
	}
	if a.RetryAfter > 0 {
		h.Set("Retry-After", fmt.Sprint(a.RetryAfter))
	}
	resp := &http.Response{
		Status:     http.StatusText(a.Code),
		StatusCode: a.Code,
		Proto:      "HTTP/2.0", ProtoMajor: 2,
		Header: h,
	}
	if a.Stream != nil {
		resp.Body, resp.ContentLength = a.Stream, -1
	} else {
		resp.Body, resp.ContentLength = newBody(a.Body), int64(len(a.Body))
	}
	return resp, nil
}

func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	defer req.Body.Close()
	if req.ContentLength > 0 {
		b := make([]byte, req.ContentLength)
		_, err := io.ReadFull(req.Body, b)
		return b, err
	}
	return io.ReadAll(req.Body)
}

// Bubble runs f in a testing/synctest bubble with a new server. Time in the
// bubble is virtual: it stands still while a goroutine can run, and jumps ahead
// when all of them wait. When f returns, every goroutine that it started must
// end, or the test fails with their stacks; contexts that come from t are done
// by then.
//
// Bubble also removes the rate limit of apimachinery's error handlers for the
// rest of the process. That limiter compares virtual time with the real time at
// which the process started, so in a bubble it sleeps for decades, and
// reflectors call it when a watch fails.
func Bubble(t *testing.T, opts Options, f func(t *testing.T, s *Server)) {
	t.Helper()
	withoutLimiter()
	synctest.Test(t, func(t *testing.T) { f(t, New(opts)) })
}

// withoutLimiter keeps the first of apimachinery's error handlers, which logs.
var withoutLimiter = sync.OnceFunc(func() {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:min(1, len(utilruntime.ErrorHandlers))]
})

// Handler returns an http.Handler through which the server can be reached over
// a real connection. Every request is sent as user. It is for tests of complete
// programs, which accept no RoundTripper. It can't be used in a synctest bubble.
func (s *Server) Handler(user User) http.Handler {
	as := request.User(user).OrAdmin()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := s.roundTrip(as, r)
		if err != nil {
			// An injected transport error: net/http drops the connection.
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		flusher, _ := w.(http.Flusher)
		if flusher != nil {
			flusher.Flush() // send the headers of a watch before its first event
		}
		_, _ = io.Copy(&flushing{w, flusher}, resp.Body) // the client is gone, or the response is over
	})
}

// flushing flushes each event of a watch.
type flushing struct {
	w       io.Writer
	flusher http.Flusher
}

func (f *flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if f.flusher != nil {
		f.flusher.Flush()
	}
	return n, err
}

// responseBody is a complete body.
type responseBody struct{ bytes.Reader }

func newBody(b []byte) *responseBody {
	rb := &responseBody{}
	rb.Reset(b)
	return rb
}

func (*responseBody) Close() error { return nil }
