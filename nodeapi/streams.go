// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// streams counts the open streams, and ends them when the Server stops.
type streams struct {
	max    int
	idle   time.Duration // after which a connection without traffic is closed
	opened func(context.Context, StreamsOpen)
	// reporting is held for a call of opened, so that the last one has the number that
	// stays.
	reporting sync.Mutex

	mu      sync.Mutex
	open    map[*openStream]struct{}
	stopped bool
	settled chan struct{} // closed when stopped and no stream is open
}

// A share says who holds a stream. None may hold all of them.
type share struct{ namespace, pod, user string }

// shareOf returns the share of a request for a pod.
func shareOf(ctx context.Context, pod Pod) share {
	to := share{namespace: pod.Namespace, pod: pod.String()}
	if u, ok := request.UserFrom(ctx); ok {
		to.user = u.GetName()
	}
	return to
}

// undivided is the number of streams that any pod, namespace or user may hold.
const undivided = 10

// perPod, perNamespace and perUser are the streams that one of each may hold. An API
// server is one user for all of its clients, so it is the namespaces that keep tenants
// apart.
func (s *streams) perPod() int       { return max(s.max/4, undivided) }
func (s *streams) perNamespace() int { return max(s.max/2, undivided) }
func (s *streams) perUser() int      { return max(s.max*3/4, undivided) }

// openStream is a request that may last: a log, a command, a port-forward, and each
// connection that is forwarded.
type openStream struct {
	of     share
	cancel context.CancelCauseFunc
	conn   net.Conn // set when the connection was taken over
}

// stopping is the answer to a request that comes too late.
const stopping = "the node is shutting down"

// The causes with which the context of a stream ends.
var (
	errClientGone = errors.New("the client has closed the connection")
	errStopping   = errors.New(stopping)
	errEnded      = errors.New("the stream has ended")
)

func newStreams(limit int, idle time.Duration, opened func(context.Context, StreamsOpen)) *streams {
	return &streams{max: limit, idle: idle, opened: opened, open: make(map[*openStream]struct{}), settled: make(chan struct{})}
}

// begin adds a stream. Its context ends with that of the request, when the client
// is gone, or when the Server stops. end must be called when it has ended.
func (s *streams) begin(ctx context.Context, of share) (_ context.Context, st *openStream, end func(), err error) {
	st = &openStream{of: of}
	ctx, st.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	if err = s.admit(of); err == nil {
		s.open[st] = struct{}{}
	}
	rejected := err != nil && !s.stopped
	s.mu.Unlock()
	s.report(ctx, rejected)
	if err != nil {
		st.cancel(err)
		return nil, nil, nil, err
	}
	return ctx, st, sync.OnceFunc(func() {
		st.cancel(errEnded)
		s.mu.Lock()
		if st.conn != nil {
			_ = st.conn.Close()
		}
		delete(s.open, st)
		s.settle()
		s.mu.Unlock()
		s.report(ctx, false)
	}), nil
}

// admit returns an error if no stream may be opened. s.mu must be held.
func (s *streams) admit(of share) error {
	var pod, namespace, user int
	for st := range s.open {
		if st.of.pod == of.pod {
			pod++
		}
		if st.of.namespace == of.namespace {
			namespace++
		}
		if st.of.user == of.user {
			user++
		}
	}
	whose, n := "", 0
	switch {
	case s.stopped:
		return &statusError{http.StatusServiceUnavailable, stopping}
	case len(s.open) >= s.max:
		whose, n = "the node has", len(s.open)
	case pod >= s.perPod():
		whose, n = "pod "+of.pod+" has", pod
	case namespace >= s.perNamespace():
		whose, n = "namespace "+of.namespace+" has", namespace
	case user >= s.perUser():
		whose, n = fmt.Sprintf("user %q has", of.user), user
	default:
		return nil
	}
	return &statusError{http.StatusTooManyRequests, fmt.Sprintf("%s %d open log, exec, attach and port-forward streams, the maximum; try again later", whose, n)}
}

func (s *streams) report(ctx context.Context, rejected bool) {
	if s.opened == nil {
		return
	}
	s.reporting.Lock()
	defer s.reporting.Unlock()
	s.mu.Lock()
	n := len(s.open)
	s.mu.Unlock()
	s.opened(ctx, StreamsOpen{Open: n, Rejected: rejected})
}

// settle closes settled if it is due. s.mu must be held.
func (s *streams) settle() {
	if s.stopped && len(s.open) == 0 {
		select {
		case <-s.settled:
		default:
			close(s.settled)
		}
	}
}

// stop cancels all streams and rejects new ones.
func (s *streams) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for st := range s.open {
		st.cancel(errStopping)
	}
	s.settle()
}

// close closes the connections of streams that took them over.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.open {
		if st.conn != nil {
			_ = st.conn.Close()
		}
	}
}

// wait returns when no stream is open after stop, or with the error of ctx.
func (s *streams) wait(ctx context.Context) error {
	select {
	case <-s.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("streams did not end: %w", ctx.Err())
	}
}

// takeOver returns the function that wraps the hijacked connection of st.
func (s *streams) takeOver(st *openStream) func(net.Conn) net.Conn {
	return func(conn net.Conn) net.Conn {
		c := &streamConn{Conn: conn, gone: st.cancel, idle: s.idle}
		c.timer = time.AfterFunc(s.idle, func() {
			st.cancel(errClientGone)
			_ = conn.Close()
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		st.conn = c
		return c
	}
}

// streamConn is a hijacked connection. Package wire reads from it all the time, so a
// failed read is how the loss of a client is noticed: the context of a hijacked
// request does not end with its client. It is closed after idle without traffic.
type streamConn struct {
	net.Conn
	gone   context.CancelCauseFunc
	idle   time.Duration
	timer  *time.Timer
	closed atomic.Bool
}

// used records traffic.
func (c *streamConn) used() {
	c.timer.Reset(c.idle)
	if c.closed.Load() { // a timer would keep the connection in memory
		c.timer.Stop()
	}
}

func (c *streamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.gone(errClientGone)
	}
	c.used()
	return n, err
}

func (c *streamConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.used()
	return n, err
}

func (c *streamConn) Close() error {
	c.closed.Store(true)
	c.timer.Stop()
	c.gone(errClientGone)
	return c.Conn.Close()
}
