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
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Timeouts of connections. There is none for reading or writing whole requests,
// because streams last.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// bodyTimeout bounds the wait for the body of a request, which is not read.
	bodyTimeout = 10 * time.Second
	// stall is the time for which the client of a log may not read what is sent.
	stall = 10 * time.Minute
	// plainTimeout bounds the writing of an answer that is no stream.
	plainTimeout   = time.Minute
	maxHeaderBytes = 64 << 10
)

// A Server serves the HTTPS API of a node. It is an http.Handler, and Run is a
// server for it. All methods may be called concurrently.
type Server struct {
	cfg           Config
	backend       backend
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
	streams       *streams
	followed      snapshot
	ready         ready
	begun         atomic.Bool
	failure       atomic.Pointer[error] // of the listener
	requests      sync.RWMutex          // held for reading by each request that Run serves
	// The constants of the same names, but for tests.
	stall, bodyTimeout time.Duration
}

// New returns a Server. It returns an error that names every invalid field of
// cfg. It does no I/O.
func New(cfg Config) (*Server, error) {
	cfg, problems := complete(cfg)
	if len(problems) > 0 {
		return nil, fmt.Errorf("nodeapi: invalid config: %w", problems.ToAggregate())
	}
	s := &Server{
		cfg: cfg, backend: newBackend(cfg.Backend), authenticator: cfg.Authenticator, authorizer: cfg.Authorizer,
		streams: newStreams(cfg.MaxStreams, cfg.StreamIdleTimeout, cfg.Hooks.Streams), ready: ready{cfg.Name, make(chan struct{})},
		stall: stall, bodyTimeout: bodyTimeout,
	}
	var err error
	if s.authenticator == nil {
		if s.authenticator, err = newAuthenticator(&cfg, s.report); err != nil {
			return nil, fmt.Errorf("nodeapi: authentication: %w", err)
		}
	}
	if s.authorizer == nil {
		if s.authorizer, err = newAuthorizer(&cfg); err != nil {
			return nil, fmt.Errorf("nodeapi: authorization: %w", err)
		}
	}
	return s, nil
}

// Name returns Config.Name.
func (s *Server) Name() string { return s.cfg.Name }

// Ready returns a checker that is done when Run accepts connections.
func (s *Server) Ready() cache.DoneChecker { return s.ready }

// Check returns an error if Run no longer accepts connections.
func (s *Server) Check(*http.Request) error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

type ready struct {
	name string
	done chan struct{}
}

func (r ready) Name() string          { return r.name }
func (r ready) Done() <-chan struct{} { return r.done }

// stopping is the answer to a request that comes too late.
const stopping = "the node is shutting down"

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
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ErrorLog:    log.New(logWriter{logger}, "", 0),
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

// log returns the logger of a request.
func (s *Server) log(r *http.Request) klog.Logger { return klog.FromContext(r.Context()) }

// report reports an error that the Server recovers from.
func (s *Server) report(ctx context.Context, err error, msg string) {
	if s.cfg.ErrorHandler != nil {
		s.cfg.ErrorHandler(ctx, err, msg)
		return
	}
	klog.FromContext(ctx).Error(err, msg)
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
			s.report(r.Context(), done.Err, "A callback panicked")
		}
		if s.cfg.Hooks.Request != nil {
			done.Code, done.Written, done.Latency = out.code, out.written, time.Since(began)
			s.cfg.Hooks.Request(done)
		}
		s.log(r).V(4).Info("Served", "method", r.Method, "path", r.URL.Path, "user", done.User, "code", out.code, "err", done.Err)
		if truncated(out, done.Err) {
			panic(http.ErrAbortHandler) // the client must not take the part for the whole
		}
	}()
	user, err := s.authenticate(r)
	if err == nil {
		done.User = user.GetName()
		r = r.WithContext(request.WithUser(r.Context(), user))
		route := parsePath(r.URL.Path, r.URL.RawPath)
		done.Endpoint = string(route.endpoint)
		if err = s.authorize(r, user, route.endpoint); err == nil {
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
	_ = http.NewResponseController(w.w).SetWriteDeadline(time.Now().Add(plainTimeout))
	switch to.endpoint {
	case endpointHealthz, endpointLivez:
		return s.serveHealth(w, r, to, s.cfg.Checks)
	case endpointReadyz:
		return s.serveHealth(w, r, to, slices.Concat(s.cfg.Checks, s.cfg.ReadyChecks))
	case endpointPods, endpointRunningPods:
		return s.servePods(w, to.endpoint)
	case endpointRun:
		return s.serveRun(w, r, to.container, query)
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

// response is the http.ResponseWriter of a request. It has no method Unwrap, by
// which the connection would be taken over past it.
type response struct {
	w       http.ResponseWriter
	code    int
	written int64
	// stall bounds the time for which the client of a log may not read.
	stall time.Duration
	// hijack, if set, takes over the connection.
	hijack func(net.Conn) net.Conn
}

func (w *response) Header() http.Header { return w.w.Header() }

func (w *response) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.w.WriteHeader(code)
}

func (w *response) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	n, err := w.w.Write(p)
	w.written += int64(n)
	return n, err
}

func (w *response) Flush() {
	if f, ok := w.w.(http.Flusher); ok {
		f.Flush()
	}
}

// send writes a part of a log. It returns an error if the client does not read for
// too long: a client that never does would hold its stream without limit.
func (w *response) send(p []byte, flush bool) error {
	control := http.NewResponseController(w.w)
	_ = control.SetWriteDeadline(time.Now().Add(w.stall))
	// A deadline that passes between two writes would end an HTTP/2 stream.
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	_, err := w.Write(p)
	if err == nil && flush {
		err = control.Flush()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the client has not read for %v: %w", w.stall, err)
	}
	return err
}

// fail writes an error if nothing has been written yet.
func (w *response) fail(err error) {
	if w.code != 0 {
		return
	}
	code, sentence := answerTo(err)
	switch code {
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("Connection", "close") // a connection has one guess
	}
	http.Error(w, sentence, code)
}

// truncated reports whether an error ended a response that had begun, other than
// one that ends a stream on purpose.
func truncated(w *response, err error) bool {
	return err != nil && w.code == http.StatusOK &&
		!errors.Is(err, errStopping) && !errors.Is(err, errClientGone) && !errors.Is(err, context.Canceled)
}

// guard calls f and returns a panic as an error.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return f()
}
