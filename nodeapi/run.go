// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

// Timeouts of connections. There is none for reading or writing whole requests,
// because streams last.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// plainTimeout bounds the writing of an answer that is no stream.
	plainTimeout = time.Minute
	// plainStall bounds the time for which its client may not read.
	plainStall = 10 * time.Second
	// maxPlain is the number of answers at a time that are no streams. Those of health
	// checks are small and do not count.
	maxPlain       = 64
	maxHeaderBytes = 64 << 10
	// maxRequests is the number of requests of one HTTP/2 connection at a time. A stranger's wait for
	// the reviews of invented tokens, and each keeps its goroutine and its header. A client with more, such
	// as an API server with many logs that are followed, opens another connection.
	maxRequests = 50
	// maxFields is the number of header fields of a request. A stream keeps them, and
	// one of a few bytes takes 60.
	maxFields = 100
)

var errStopped = errors.New("nodeapi: Run has returned")

// Run listens and serves until ctx is done. It then stops listening, cancels the
// open requests, closes their connections after ShutdownTimeout, and returns nil
// when all calls of the backend have returned. It returns an error if it can't
// listen or can't load the files of Certificate, and ErrAlreadyRun if it was
// called before.
func (s *Server) Run(ctx context.Context) error {
	if !s.begun.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), s.cfg.Name)
	ctx = klog.NewContext(ctx, logger)
	defer s.failure.CompareAndSwap(nil, &errStopped)

	listener := s.cfg.Listener
	if listener == nil {
		var err error
		if listener, err = net.Listen("tcp", s.cfg.Address); err != nil {
			return fmt.Errorf("nodeapi: %w", err)
		}
	}
	tlsConfig, stop, err := s.certificate(ctx)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer stop()

	// Requests outlive ctx by ShutdownTimeout at most; streams end with ctx.
	server := &http.Server{
		Handler: http.HandlerFunc(s.serveInRun), TLSConfig: tlsConfig,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxRequests}, ReadHeaderTimeout: headerTimeout, IdleTimeout: s.idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ConnContext: withConn, ConnState: s.conns.state,
		ErrorLog: log.New(logWriter{logger}, "", 0),
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	logger.V(3).Info("Listening", "address", listener.Addr().String())
	close(s.ready.done)

	select {
	case err = <-served:
		err = fmt.Errorf("nodeapi: the listener on %s failed: %w", listener.Addr(), err)
		s.failure.CompareAndSwap(nil, &err)
	case <-ctx.Done():
	}
	s.streams.stop()
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ShutdownTimeout)
	defer cancel()
	if late := errors.Join(server.Shutdown(shutdown), s.streams.wait(shutdown)); late != nil {
		s.report(ctx, late, "Closing connections that have not ended in time")
	}
	_ = server.Close()
	s.streams.close()
	_ = s.streams.wait(context.WithoutCancel(ctx)) // those of ServeHTTP, too
	s.requests.Lock()                              // for good: all calls have returned, and none begins
	logger.V(3).Info("Stopped")
	return err
}

// serveInRun serves a request that must end before Run returns.
func (s *Server) serveInRun(w http.ResponseWriter, r *http.Request) {
	if !s.requests.TryRLock() { // Run is waiting for the last ones
		http.Error(w, stopping, http.StatusServiceUnavailable)
		return
	}
	defer s.requests.RUnlock()
	s.ServeHTTP(w, r)
}

// logWriter logs the complaints of package net/http, most of them about clients
// that end a handshake.
type logWriter struct{ logger klog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.logger.V(4).Info(strings.TrimSpace(string(p)))
	return len(p), nil
}

// ServeHTTP serves one request, for programs that have a server of their own.
// That server must ask for client certificates (tls.RequestClientCert) for
// API servers to be recognized, must not set read or write timeouts, because streams
// last, and its contexts decide when requests end.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	if r.ContentLength != 0 {
		// No endpoint reads a body, and package net/http waits for its end.
		_ = http.NewResponseController(w).SetReadDeadline(began.Add(s.bodyTimeout))
	}
	done := Request{Endpoint: string(endpointUnknown), Method: r.Method}
	out := &response{w: w}
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so too
				panic(v)
			}
			done.Err = &PanicError{v, debug.Stack()}
			out.fail(done.Err)
		}
		if _, ok := errors.AsType[*PanicError](done.Err); ok {
			s.report(r.Context(), done.Err, panickedMessage)
		}
		if s.cfg.Hooks.Request != nil {
			done.Code, done.Written, done.Latency = out.code, out.written, time.Since(began)
			s.call(r.Context(), func() { s.cfg.Hooks.Request(done) })
		}
		s.log(r).V(4).Info("Served", "method", r.Method, "path", r.URL.Path, "user", done.User, "code", out.code, "err", done.Err)
		if done.Err != nil && out.code == http.StatusOK {
			panic(http.ErrAbortHandler) // the client must not take the part for the whole
		}
	}()
	r = r.WithContext(withOrigin(r.Context(), r.RemoteAddr))
	user, err := s.authenticate(r)
	if err == nil {
		done.User = user.GetName()
		r = r.WithContext(request.WithUser(r.Context(), user))
		route := parsePath(r.URL.Path, r.URL.RawPath)
		done.Endpoint = string(route.endpoint)
		if err = s.authorize(r, user, route.endpoint); err == nil {
			if conn := connOf(r.Context()); conn != nil {
				s.conns.know(conn)
			}
			err = s.serve(out, r, route)
		}
	}
	if err != nil {
		done.Err = err
		out.fail(err)
	}
}

// serve serves a request that is allowed. It returns an error that was not
// written to the client yet, or that ended a stream.
func (s *Server) serve(w *response, r *http.Request, to route) error {
	if methods := rules[to.endpoint].methods; methods != nil && !slices.Contains(methods, r.Method) {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		return &statusError{http.StatusMethodNotAllowed, fmt.Sprintf("the method of %s must be %s", r.URL.Path, strings.Join(methods, " or "))}
	}
	if to.err != nil {
		return to.err
	}
	fields := 0
	for _, values := range r.Header {
		fields += len(values)
	}
	if fields > maxFields {
		return &statusError{http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the request has %d header fields, at most %d are allowed", fields, maxFields)}
	}
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	switch to.endpoint {
	case endpointLogs:
		return s.serveLogs(w, r, to.container, query)
	case endpointExec, endpointAttach:
		return s.serveCommand(w, r, to, query)
	case endpointPortForward:
		return s.servePortForward(w, r, to.container.Pod, query)
	}
	w.stall, w.end = s.plainStall, time.Now().Add(plainTimeout)
	_ = http.NewResponseController(w.w).SetWriteDeadline(w.end)
	switch to.endpoint {
	case endpointHealthz, endpointLivez, endpointReadyz:
		return s.serveHealth(w, r, to)
	case endpointRun:
		return s.serveRun(w, r, to.container, query)
	}
	select {
	case s.plain <- struct{}{}:
		defer func() { <-s.plain }()
	default:
		return &statusError{http.StatusTooManyRequests, fmt.Sprintf("the node writes %d answers, the maximum; try again later", maxPlain)}
	}
	switch to.endpoint {
	case endpointPods, endpointRunningPods:
		return s.servePods(w, to.endpoint)
	case endpointStats:
		return s.serveStats(w, r, query)
	case endpointResource:
		return s.serveResource(w, r)
	case endpointMetrics:
		return serveWith(w, r, s.cfg.Metrics, "/metrics", "Metrics")
	case endpointProbes:
		return serveWith(w, r, s.cfg.ProbeMetrics, "/metrics/probes", "ProbeMetrics")
	case endpointConfigz:
		return s.serveConfigz(w)
	case endpointPprof:
		return s.servePprof(w, r, to.rest)
	default:
		return notFound("there is no endpoint %s", abbreviated(r.URL.Path))
	}
}
