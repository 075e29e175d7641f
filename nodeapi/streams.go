// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// streams counts the open streams, and ends them when the Server stops.
type streams struct {
	max  int
	idle time.Duration // after which a connection without traffic is closed
	// check is the time between two looks at the clients, and unread the time after
	// which a connection that is not read is closed if the system does not tell whether its
	// client is there.
	check, unread time.Duration
	unanswered    uint8 // the repetitions after which a client is gone
	opened        func(context.Context, StreamsOpen)
	// reporting is held for a call of opened, so that the last one has the number that
	// stays.
	reporting sync.Mutex

	mu      sync.Mutex
	open    map[*openStream]struct{}
	looking bool // a timer will look at the clients; set while streams are open
	stopped bool
	settled chan struct{} // closed when stopped and no stream is open
}

// A share says who holds a stream. None may hold all of them. The user is empty if it
// is no tenant.
type share struct{ namespace, pod, user string }

// shareOf returns the share of a request for a pod. An API server authenticates with a
// client certificate, and is one user for all of its clients: it is no tenant.
func shareOf(ctx context.Context, pod Pod) share {
	to := share{namespace: pod.Namespace, pod: pod.String()}
	if u, ok := request.UserFrom(ctx); ok && !hasCertificate(u) {
		to.user = u.GetName()
	}
	return to
}

// hasCertificate reports whether a user was authenticated by a client certificate. An
// API server never returns such an ID in a TokenReview.
func hasCertificate(u user.Info) bool {
	return slices.ContainsFunc(u.GetExtra()[user.CredentialIDKey], func(id string) bool { return strings.HasPrefix(id, "X509SHA256=") })
}

// undivided is the number of streams that any pod, namespace or user may hold.
const undivided = 10

// perPod, perNamespace and perUser are the streams that one of each may hold. Two
// namespaces leave room for a third.
func (s *streams) perPod() int       { return max(s.max/4, undivided) }
func (s *streams) perNamespace() int { return max(s.max/3, undivided) }
func (s *streams) perUser() int      { return max(s.max*3/4, undivided) }

// openStream is a request that may last: a log, a command, a port-forward, and each
// connection that is forwarded.
type openStream struct {
	of     share
	cancel context.CancelCauseFunc
	peer   *peer       // nil if the connection is not known
	conn   *streamConn // set when the connection was taken over
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
	return &streams{max: limit, idle: idle, check: peerCheck, unread: stall, unanswered: unanswered, opened: opened, open: make(map[*openStream]struct{}), settled: make(chan struct{})}
}

// begin adds a stream. Its context ends with that of the request, when the client
// is gone, or when the Server stops. end must be called when it has ended.
func (s *streams) begin(ctx context.Context, of share) (_ context.Context, st *openStream, end func(), err error) {
	st = &openStream{of: of}
	if conn := connOf(ctx); conn != nil {
		st.peer = peerOf(conn)
	}
	ctx, st.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	if err = s.admit(of); err == nil {
		s.open[st] = struct{}{}
		if !s.looking {
			s.looking = true
			time.AfterFunc(s.check, s.look)
		}
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
	var pod, namespace, own int
	for st := range s.open {
		if st.of.pod == of.pod {
			pod++
		}
		if st.of.namespace == of.namespace {
			namespace++
		}
		if of.user != "" && st.of.user == of.user {
			own++
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
	case own >= s.perUser():
		whose, n = fmt.Sprintf("user %q has", of.user), own
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

// look ends the streams whose clients are gone, and looks again after a while.
func (s *streams) look() {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.open))
	if s.looking = len(all) > 0; s.looking {
		time.AfterFunc(s.check, s.look)
	}
	conns := make([]*streamConn, len(all))
	for i, st := range all {
		conns[i] = st.conn
	}
	s.mu.Unlock()
	for i, st := range all {
		gone, known := st.peer.gone(s.unanswered)
		if !known && conns[i] != nil {
			gone = conns[i].unreadFor() > s.unread
		}
		if !gone {
			continue
		}
		st.cancel(errClientGone)
		if conns[i] != nil {
			_ = conns[i].Close()
		}
	}
}

// takeOver returns the function that wraps the hijacked connection of st.
func (s *streams) takeOver(st *openStream) func(net.Conn) net.Conn {
	return func(conn net.Conn) net.Conn {
		c := &streamConn{Conn: conn, gone: st.cancel, idle: s.idle, began: time.Now()}
		c.timer = time.AfterFunc(s.idle, func() {
			st.cancel(errClientGone)
			_ = conn.Close()
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		st.conn = c
		if st.peer == nil {
			st.peer = peerOf(conn)
		}
		return c
	}
}

// streamConn is a hijacked connection. Package wire reads from it, so a failed read is
// how the loss of a client is noticed: the context of a hijacked request does not end
// with its client. While its input waits unread, streams.look notices the loss. It is
// closed after idle without traffic.
type streamConn struct {
	net.Conn
	gone   context.CancelCauseFunc
	idle   time.Duration
	timer  *time.Timer
	closed atomic.Bool
	quiet  atomic.Bool // what is written is no traffic
	began  time.Time
	// read is the time from began to the end of the last read, and 0 during a read.
	read atomic.Int64
}

// used records traffic.
func (c *streamConn) used() {
	c.timer.Reset(c.idle)
	if c.closed.Load() { // a timer would keep the connection in memory
		c.timer.Stop()
	}
}

func (c *streamConn) Read(p []byte) (int, error) {
	c.read.Store(0)
	n, err := c.Conn.Read(p)
	c.read.Store(max(int64(time.Since(c.began)), 1))
	if err != nil {
		c.gone(errClientGone)
	}
	c.used()
	return n, err
}

// unreadFor returns the time for which the connection was not read.
func (c *streamConn) unreadFor() time.Duration {
	last := c.read.Load()
	if last == 0 {
		return 0
	}
	return time.Since(c.began) - time.Duration(last)
}

func (c *streamConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if !c.quiet.Load() {
		c.used()
	}
	return n, err
}

// Quietly calls write, which writes something that is no traffic.
func (c *streamConn) Quietly(write func() error) error {
	c.quiet.Store(true)
	defer c.quiet.Store(false)
	return write()
}

func (c *streamConn) Close() error {
	c.closed.Store(true)
	c.timer.Stop()
	c.gone(errClientGone)
	return c.Conn.Close()
}
