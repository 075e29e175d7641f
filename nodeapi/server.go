// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/nodeapi/internal/wire"
)

// Timeouts that tests change.
const (
	// bodyTimeout bounds the wait for the body of a request, which is not read.
	bodyTimeout = 10 * time.Second
	// stall is the time for which the client of a log may not read what is sent.
	stall = 10 * time.Minute
)

// A Server serves the HTTPS API of a node. It is an http.Handler, and Run is a
// server for it. All methods may be called concurrently.
type Server struct {
	cfg           Config
	backend       backend
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
	streams       *streams
	conns         *conns
	followed      snapshot
	plain         chan struct{} // has room for maxPlain
	ready         ready
	begun         atomic.Bool
	failure       atomic.Pointer[error] // of the listener
	requests      sync.RWMutex          // held for reading by each request that Run serves
	// lastCertificate is the encoding of the certificate of the newest connection, a string.
	lastCertificate atomic.Value
	// The constants of the same names, but for tests.
	stall, plainStall, bodyTimeout, idleTimeout time.Duration
	waits                                       wire.Waits
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
		ready: ready{cfg.Name, make(chan struct{})},
		stall: stall, plainStall: plainStall, plain: make(chan struct{}, maxPlain), bodyTimeout: bodyTimeout, idleTimeout: idleTimeout, waits: wire.Waits{Ping: peerCheck, Reset: unreadForward},
	}
	var opened func(context.Context, StreamsOpen)
	if hook := cfg.Hooks.Streams; hook != nil {
		opened = func(ctx context.Context, open StreamsOpen) { s.call(ctx, func() { hook(open) }) }
	}
	s.conns = newConns(MaxStreams + maxStrangers)
	s.streams = newStreams(MaxStreams, cfg.StreamIdleTimeout, opened)
	if s.authenticator == nil {
		s.authenticator = newAuthenticator(&cfg, s.report)
	}
	if s.authorizer == nil {
		s.authorizer = newAuthorizer(&cfg)
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

// log returns the logger of a request.
func (s *Server) log(r *http.Request) klog.Logger { return klog.FromContext(r.Context()) }

// report reports an error that the Server recovers from.
func (s *Server) report(ctx context.Context, err error, msg string) {
	handler := s.cfg.ErrorHandler
	if handler == nil {
		klog.FromContext(ctx).Error(err, msg)
		return
	}
	if panicked := guard(func() error { handler(ctx, err, msg); return nil }); panicked != nil {
		klog.FromContext(ctx).Error(panicked, panickedMessage)
	}
}

// panickedMessage is the message for a PanicError.
const panickedMessage = "A callback panicked"

// call calls a hook. The stream or connection that a panic is about goes on.
func (s *Server) call(ctx context.Context, hook func()) {
	if err := guard(func() error { hook(); return nil }); err != nil {
		s.report(ctx, err, panickedMessage)
	}
}
