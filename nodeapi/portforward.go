// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/nodeapi/internal/wire"
)

func (s *Server) servePortForward(w *response, r *http.Request, pod Pod, query url.Values) error {
	if s.backend.forward == nil {
		return missing("port-forward", "PortForwarder")
	}
	var ports []int32
	webSocket := websocket.IsWebSocketUpgrade(r)
	tunnel := webSocket && slices.Contains(websocket.Subprotocols(r), tunnelProtocol)
	if webSocket && !tunnel { // SPDY has the ports in its streams
		var err error
		if ports, err = parsePorts(query["port"]); err != nil {
			return err
		}
	}
	if _, err := s.resolve(&pod); err != nil {
		return err
	}
	if err := upgradable(r); err != nil {
		return err
	}
	of := shareOf(r.Context(), pod)
	ctx, st, end, err := s.streams.begin(r.Context(), of)
	if err != nil {
		return err
	}
	defer end()
	w.hijack = s.streams.takeOver(st)
	f := &forwards{Server: s, ctx: ctx, of: of, pod: pod, pairs: make(map[string]*forwardPair)}
	ended := ctx.Done()
	var conn *wire.Conn
	switch {
	case tunnel:
		ws, _, err := upgradeWebSocket(w, r, []string{tunnelProtocol})
		if err != nil {
			return err
		}
		conn = wire.Tunnel(ws, s.waits, f.open)
	case !webSocket:
		if conn, err = upgradeSPDY(w, r, []string{portForwardProtocol}, s.waits, func(string) wire.OpenFunc { return f.open }); err != nil {
			return err
		}
	default:
		ws, protocol, err := upgradeWebSocket(w, r, webSocketForwardProtocols)
		if err != nil {
			return err
		}
		var channels []*wire.Stream
		conn, channels = wire.WebSocket(ws, formatOf(protocol), s.waits, 2*len(ports))
		ended = f.begin(ports, channels)
	}
	select {
	case <-ended:
	case <-conn.Done():
	case <-ctx.Done():
	}
	st.cancel(errEnded)
	conn.Close(linger)
	f.stopWaiting() // no stream is opened from now on
	f.calls.Wait()
	if cause := conn.Err(); cause != nil {
		s.log(r).V(4).Info("The client has ended the connection", "cause", cause)
	}
	return f.panicked()
}

// parsePorts parses the ports of a WebSocket request.
func parsePorts(values []string) (ports []int32, err error) {
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			port, err := strconv.ParseUint(one, 10, 16)
			if err != nil || port == 0 {
				return nil, badRequest("the query parameter port must be ports from 1 to 65535: %s", abbreviated(value))
			}
			ports = append(ports, int32(port))
		}
	}
	switch {
	case len(ports) == 0:
		return nil, badRequest("the query parameter port is required for a WebSocket")
	case len(ports) > maxForwards:
		return nil, badRequest("the query names %d ports, at most %d are allowed", len(ports), maxForwards)
	}
	return ports, nil
}

// unreadForward is the time for which the pod may not read from a forward while all
// forwards of its connection wait for that.
const unreadForward = 30 * time.Second

// maxForwards bounds the forwarded connections of one request. So many ports fit in
// the channels of a WebSocket, two for each.
const maxForwards = 127

// The protocols of port-forward requests.
const (
	portForwardProtocol = "portforward.k8s.io"
	tunnelProtocol      = "SPDY/3.1+" + portForwardProtocol // SPDY in the messages of a WebSocket
)

var webSocketForwardProtocols = []string{"v4.channel.k8s.io", "v4.base64.channel.k8s.io"}

// forwards are the forwarded connections of one request.
type forwards struct {
	*Server
	ctx   context.Context
	of    share
	pod   Pod
	calls sync.WaitGroup

	mu sync.Mutex
	// pairs are the connections that are open, or of which one stream is, by the
	// client's request ID.
	//
	// Invariant: len(pairs) <= maxForwards.
	pairs map[string]*forwardPair
	err   error // the first panic
}

// forwardPair is the two streams of a forwarded connection.
type forwardPair struct {
	id            string
	port          uint16
	data, failure *wire.Stream
	late          *time.Timer // ends a pair that is not complete
}

// open is called for each stream that a client of SPDY opens.
func (f *forwards) open(st *wire.Stream, headers http.Header) error {
	id, kind := headers.Get(corev1.PortForwardRequestIDHeader), headers.Get(corev1.StreamType)
	port, err := strconv.ParseUint(headers.Get(corev1.PortHeader), 10, 16)
	if err != nil || port == 0 || id == "" || kind != corev1.StreamTypeData && kind != corev1.StreamTypeError {
		return wire.ErrRefused
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pairs[id]
	if p == nil {
		if len(f.pairs) >= maxForwards {
			return wire.ErrRefused
		}
		p = &forwardPair{id: id}
		p.late = time.AfterFunc(f.cfg.StreamCreationTimeout, func() { f.drop(p) })
		f.pairs[id] = p
	}
	switch {
	case kind == corev1.StreamTypeData && p.data == nil:
		p.data, p.port = st, uint16(port)
	case kind == corev1.StreamTypeError && p.failure == nil:
		p.failure = st
		st.Discard()
	default: // a second one
		return wire.ErrRefused
	}
	if err := st.Accept(); err != nil {
		return err
	}
	if p.data != nil && p.failure != nil {
		p.late.Stop()
		f.calls.Go(func() { f.forward(p) })
	}
	return nil
}

// begin forwards the ports of a WebSocket. The channel that it returns is closed when
// all have ended.
func (f *forwards) begin(ports []int32, channels []*wire.Stream) <-chan struct{} {
	for i, port := range ports {
		p := &forwardPair{port: uint16(port), data: channels[2*i], failure: channels[2*i+1]}
		p.failure.Discard()
		for _, st := range []*wire.Stream{p.data, p.failure} {
			_, _ = st.Write(binary.LittleEndian.AppendUint16(nil, p.port))
		}
		f.calls.Go(func() { f.forward(p) })
	}
	ended := make(chan struct{})
	go func() {
		f.calls.Wait()
		close(ended)
	}()
	return ended
}

// drop ends a pair of which the client did not open the second stream.
func (f *forwards) drop(p *forwardPair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.data != nil && p.failure != nil {
		return
	}
	for _, st := range []*wire.Stream{p.data, p.failure} {
		if st != nil {
			st.Reset()
		}
	}
	delete(f.pairs, p.id)
}

// stopWaiting stops the timers of pairs that are not complete: they would keep the
// connection in memory.
func (f *forwards) stopWaiting() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pairs {
		p.late.Stop()
	}
}

// forward calls the backend for a pair.
func (f *forwards) forward(p *forwardPair) {
	err, aborted := f.call(p), p.data.Aborted()
	if errors.Is(aborted, wire.ErrUnread) {
		klog.FromContext(f.ctx).V(2).Info("Reset a forward that the pod does not read", "pod", f.pod, "port", p.port)
	}
	switch {
	case f.ctx.Err() != nil, aborted != nil: // kubectl ends all its forwards when it is told about a failure
		p.data.Reset()
	case err != nil:
		_, sentence := answerTo(err)
		_, _ = fmt.Fprintf(p.failure, "error forwarding port %d to pod %s, uid %s: %s", p.port, f.pod.Name, f.pod.UID, sentence)
		p.data.Reset()
	default:
		p.data.Finish()
	}
	p.failure.Finish()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pairs, p.id)
	if _, ok := errors.AsType[*PanicError](err); ok {
		f.err = err
	}
}

func (f *forwards) call(p *forwardPair) error {
	ctx, st, end, err := f.streams.begin(f.ctx, f.of)
	if err != nil {
		return err
	}
	defer end()
	p.data.OnAbort(func(why error) { st.cancel(why) })
	return guard(func() error { return f.backend.forward.PortForward(ctx, f.pod, p.port, p.data) })
}

func (f *forwards) panicked() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Copy copies bytes between a forwarded stream and a connection in both
// directions, for implementations of PortForwarder. When one side ends its
// direction, Copy ends it on the other side. Copy returns when both directions have
// ended, one of them has failed, or ctx is done. It closes conn. A client that resets
// its stream ends both directions, and that is no error.
func Copy(ctx context.Context, stream io.ReadWriteCloser, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	received := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, stream)
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
		} else {
			_ = conn.Close()
		}
		received <- err
	}()
	_, err := io.Copy(stream, conn)
	if err != nil {
		_ = conn.Close() // and the other direction with it
	}
	_ = stream.Close()
	select {
	case e := <-received:
		err = errors.Join(err, e)
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		// The stream ends with its connection, which the Server closes.
		err = context.Cause(ctx)
	}
	if errors.Is(err, wire.ErrReset) {
		return nil
	}
	return err
}

var _ http.Handler = (*Server)(nil)
