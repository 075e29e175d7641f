// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

func (s *Server) servePortForward(w *response, r *http.Request, pod Pod, query url.Values) error {
	if s.backend.forward == nil {
		return missing("port-forward", "PortForwarder")
	}
	var ports []int32
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") { // SPDY has the ports in its streams
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
	ctx, st, end, err := s.streams.begin(r.Context())
	if err != nil {
		return err
	}
	defer end()
	w.hijack = s.streams.takeOver(st)
	call := &forwardCall{ctx: ctx, pod: pod, backend: s.backend.forward}
	portforward.ServePortForward(w, r.WithContext(ctx), call, pod.Name, string(pod.UID), &portforward.V4Options{Ports: ports},
		s.cfg.StreamIdleTimeout, s.cfg.StreamCreationTimeout, portforward.SupportedProtocols)
	// The library does not wait for its goroutines.
	st.cancel(errEnded)
	return call.wait()
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
	case len(ports) > maxPorts:
		return nil, badRequest("the query names %d ports, at most %d are allowed", len(ports), maxPorts)
	}
	return ports, nil
}

// maxPorts is the number of ports that fits in the channels of a WebSocket, two
// for each.
const maxPorts = 127

// forwardCall is the calls of a PortForwarder for one request.
type forwardCall struct {
	ctx     context.Context
	pod     Pod
	backend PortForwarder

	mu    sync.Mutex
	calls sync.WaitGroup
	over  bool
	err   error // the first panic
}

// PortForward implements portforward.PortForwarder.
func (c *forwardCall) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return errClientGone
	}
	c.calls.Add(1)
	c.mu.Unlock()
	defer c.calls.Done()
	err := guard(func() error { return c.backend.PortForward(c.ctx, c.pod, uint16(port), stream) })
	if _, ok := errors.AsType[*PanicError](err); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = err
		return errors.New("the node failed to serve this request")
	}
	if c.ctx.Err() != nil {
		// The library resets a stream only for an error, which it would log. Data
		// that is not read would keep goroutines of the connection without limit.
		if s, ok := stream.(interface{ Reset() error }); ok {
			_ = s.Reset()
		}
		return nil
	}
	return err
}

// wait waits for the calls and prevents further ones.
func (c *forwardCall) wait() error {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.calls.Wait()
	return c.err
}

// Copy copies bytes between a forwarded stream and a connection in both
// directions, for implementations of PortForwarder. When one side ends its
// direction, Copy ends it on the other side. Copy returns when both directions have
// ended or ctx is done. It closes conn.
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
	_ = stream.Close()
	if ctx.Err() != nil {
		// The stream ends with its connection, which the Server closes.
		return context.Cause(ctx)
	}
	select {
	case e := <-received:
		return errors.Join(err, e)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var _ http.Handler = (*Server)(nil)
