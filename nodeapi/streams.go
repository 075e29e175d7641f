// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// streams counts the open streams, and ends them when the Server stops.
type streams struct {
	max    int
	opened func(StreamsOpen)

	mu      sync.Mutex
	open    map[*openStream]struct{}
	stopped bool
	idle    chan struct{} // closed when stopped and no stream is open
}

// openStream is a request that may last: a log, a command, a port-forward.
type openStream struct {
	cancel context.CancelCauseFunc
	conn   net.Conn // set when the connection was taken over
}

// The causes with which the context of a stream ends.
var (
	errClientGone = errors.New("the client has closed the connection")
	errStopping   = errors.New(stopping)
	errEnded      = errors.New("the stream has ended")
)

func newStreams(limit int, opened func(StreamsOpen)) *streams {
	return &streams{max: limit, opened: opened, open: make(map[*openStream]struct{}), idle: make(chan struct{})}
}

// begin adds a stream. Its context ends with that of the request, when the client
// is gone, or when the Server stops. end must be called when it has ended.
func (s *streams) begin(ctx context.Context) (_ context.Context, st *openStream, end func(), err error) {
	st = &openStream{}
	ctx, st.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	n := len(s.open)
	switch {
	case s.stopped:
		err = &statusError{http.StatusServiceUnavailable, stopping}
	case n >= s.max:
		err = &statusError{http.StatusTooManyRequests, fmt.Sprintf("the node has %d open log, exec, attach and port-forward requests, its maximum; try again later", n)}
	default:
		s.open[st] = struct{}{}
	}
	n = len(s.open)
	s.mu.Unlock()
	s.report(n, err != nil)
	if err != nil {
		st.cancel(err)
		return nil, nil, nil, err
	}
	return ctx, st, sync.OnceFunc(func() {
		st.cancel(errEnded)
		s.mu.Lock()
		if st.conn != nil {
			_ = st.conn.Close() // package remotecommand leaves it open after a failed handshake
		}
		delete(s.open, st)
		n := len(s.open)
		s.settle()
		s.mu.Unlock()
		s.report(n, false)
	}), nil
}

func (s *streams) report(n int, rejected bool) {
	if s.opened != nil {
		s.opened(StreamsOpen{Open: n, Rejected: rejected})
	}
}

// settle closes idle if it is due. s.mu must be held.
func (s *streams) settle() {
	if s.stopped && len(s.open) == 0 {
		select {
		case <-s.idle:
		default:
			close(s.idle)
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
	case <-s.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("streams did not end: %w", ctx.Err())
	}
}

// takeOver returns the function that wraps the hijacked connection of st.
func (s *streams) takeOver(st *openStream) func(net.Conn) net.Conn {
	return func(conn net.Conn) net.Conn {
		c := &streamConn{Conn: conn, gone: st.cancel}
		s.mu.Lock()
		defer s.mu.Unlock()
		st.conn = c
		return c
	}
}

// streamConn is a hijacked connection. The streaming libraries read from it all
// the time, so a failed read is how the loss of a client is noticed: the context
// of a hijacked request does not end with its client.
type streamConn struct {
	net.Conn
	gone context.CancelCauseFunc
}

func (c *streamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.gone(errClientGone)
	}
	return n, err
}

func (c *streamConn) Close() error {
	c.gone(errClientGone)
	return c.Conn.Close()
}

// hijackBuffer is the size of the buffers of a taken over connection: two TLS
// records.
const hijackBuffer = 32 << 10

// Hijack implements http.Hijacker for the streaming libraries.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	hijacker, ok := w.w.(http.Hijacker)
	if !ok || w.hijack == nil {
		return nil, nil, errors.New("nodeapi: the connection can't be taken over")
	}
	conn, buffered, err := hijacker.Hijack()
	if err != nil {
		return nil, nil, err
	}
	if w.code == 0 {
		w.code = http.StatusSwitchingProtocols
	}
	wrapped := w.hijack(conn)
	var from io.Reader = wrapped
	if n := buffered.Reader.Buffered(); n > 0 { // bytes that came with the request
		early, _ := buffered.Reader.Peek(n)
		from = io.MultiReader(bytes.NewReader(bytes.Clone(early)), wrapped)
	}
	return wrapped, bufio.NewReadWriter(bufio.NewReaderSize(from, hijackBuffer), bufio.NewWriterSize(wrapped, hijackBuffer)), nil
}
