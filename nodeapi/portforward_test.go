// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// echo answers each connection with its port, then with the bytes that it receives.
func echo(_ context.Context, _ Pod, port uint16, stream io.ReadWriteCloser) error {
	fmt.Fprintf(stream, "%5d:", port)
	_, err := io.Copy(stream, stream)
	return err
}

// The transports of client-go. kubectl prefers the second one, and an API server passes it
// on to nodes that declare FeatureWebSockets.
const (
	overSPDY      = "SPDY"
	overWebSocket = "WebSocket"
)

// overBoth runs a test with each transport.
func overBoth(t *testing.T, f func(t *testing.T, over string)) {
	for _, over := range []string{overSPDY, overWebSocket} {
		t.Run(over, func(t *testing.T) { f(t, over) })
	}
}

// forwarder runs client-go's port-forward to two ports and returns their local
// addresses.
func (r *rig) forwarder(t *testing.T, over string) (addresses map[uint16]string, stop func()) {
	t.Helper()
	u, err := url.Parse(r.url + "/portForward/default/web")
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(r.config("admin"))
	if err != nil {
		t.Fatal(err)
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	if over == overWebSocket {
		if dialer, err = portforward.NewSPDYOverWebsocketDialer(u, r.config("admin")); err != nil {
			t.Fatal(err)
		}
	}
	quit, ready := make(chan struct{}), make(chan struct{})
	fw, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{":80", ":443"}, quit, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- fw.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		select {
		case <-ready: // both
			ended <- err
		default:
			t.Fatal(err)
		}
	}
	ports, err := fw.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	addresses = make(map[uint16]string)
	for _, p := range ports {
		addresses[p.Remote] = fmt.Sprintf("127.0.0.1:%d", p.Local)
	}
	return addresses, sync.OnceFunc(func() { close(quit); <-ended })
}

func TestFiftyForwardedConnectionsAtOnce(t *testing.T) {
	overBoth(t, func(t *testing.T, over string) {
		r := start(t, &testBackend{forward: echo}, nil)
		addresses, stop := r.forwarder(t, over)
		defer stop()
		payload := make([]byte, 64<<10)
		_, _ = (&pattern{}).Read(payload)
		var wg sync.WaitGroup
		for i := range 50 {
			port := []uint16{80, 443}[i%2]
			wg.Go(func() {
				conn, err := net.Dial("tcp", addresses[port])
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close() }()
				go func() {
					_, _ = conn.Write(payload)
					_ = conn.(*net.TCPConn).CloseWrite()
				}()
				got, err := io.ReadAll(conn)
				if want := append([]byte(fmt.Sprintf("%5d:", port)), payload...); err != nil || !bytes.Equal(got, want) {
					t.Errorf("connection %d: %d bytes, %v", i, len(got), err)
				}
			})
		}
		wg.Wait()
	})
}

// dial connects to a forwarded port until the end of the test.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// awaitStacks waits until the stacks of all goroutines are as wanted.
func awaitStacks(t *testing.T, what string, wanted func(stacks []byte) bool) {
	t.Helper()
	again, timeout := time.NewTicker(10*time.Millisecond), time.After(patience)
	defer again.Stop()
	buf := make([]byte, 1<<20)
	for {
		stacks := buf[:runtime.Stack(buf, true)]
		if wanted(stacks) {
			return
		}
		select {
		case <-again.C:
		case <-timeout:
			t.Fatalf("waited %v for %s:\n%s", patience, what, stacks)
		}
	}
}

func TestAWebSocketForwardsPorts(t *testing.T) {
	r := start(t, &testBackend{forward: echo}, nil)
	ws := r.webSocket("/portForward/default/web?port=80&port=443", "v4.channel.k8s.io")
	for _, channel := range []byte{0, 2} {
		port := map[byte]uint16{0: 80, 2: 443}[channel]
		ws.write(channel, "hello")
		want := string(binary.LittleEndian.AppendUint16(nil, port)) + fmt.Sprintf("%5d:hello", port)
		var got string
		for !strings.HasSuffix(got, "hello") {
			part := ws.until(channel)[channel]
			if part == "" {
				break
			}
			got += part
		}
		if !strings.HasSuffix(got, "hello") || len(got) > len(want) {
			t.Errorf("channel %d: %q, want %q", channel, got, want)
		}
	}
	for _, query := range []string{"", "?port=0", "?port=70000", "?port=x", "?port=" + strings.Repeat("1,", 200) + "1"} {
		req := r.request("/portForward/default/web" + query)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
		client := insecureClient(nil)
		client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		client.CloseIdleConnections()
		if resp.StatusCode != 400 {
			t.Errorf("%.40s: %s", query, resp.Status)
		}
	}
}

// TestAWebSocketEndsWithItsForwards: it names all its ports when it begins, so nothing is
// left to do when they have ended.
func TestAWebSocketEndsWithItsForwards(t *testing.T) {
	r := start(t, &testBackend{forward: func(context.Context, Pod, uint16, io.ReadWriteCloser) error { return nil }}, nil)
	ws := r.webSocket("/portForward/default/web?port=80&port=443", "v4.channel.k8s.io")
	_ = ws.SetReadDeadline(time.Now().Add(patience))
	var err error
	for err == nil {
		_, _, err = ws.ReadMessage()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection goes on")
	}
	if done := r.awaitRequest(endpointPortForward); done.Err != nil {
		t.Error(done.Err)
	}
}

func TestCopyPassesOnTheEndOfEachDirection(t *testing.T) {
	overBoth(t, func(t *testing.T, over string) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		go func() { // a server that answers when its client has ended
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			data, _ := io.ReadAll(conn)
			fmt.Fprintf(conn, "got %s", data)
		}()
		r := start(t, &testBackend{forward: func(ctx context.Context, _ Pod, _ uint16, stream io.ReadWriteCloser) error {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				return err
			}
			return Copy(ctx, stream, conn)
		}}, nil)
		addresses, stop := r.forwarder(t, over)
		defer stop()
		conn := dial(t, addresses[80])
		fmt.Fprint(conn, "all")
		_ = conn.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(conn); err != nil || string(got) != "got all" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// halves is a stream whose output ends with Close and whose input goes on.
type halves struct {
	io.Reader
	io.WriteCloser
}

// TestCopyReadsOnAfterThePodHasEnded its output: bytes of the client still arrive.
func TestCopyReadsOnAfterThePodHasEnded(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	arrived := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.(*net.TCPConn).CloseWrite()
		data, err := io.ReadAll(conn)
		arrived <- fmt.Sprintf("%s %v", data, err)
	}()
	conn := dial(t, listener.Addr().String())
	fromClient, client := io.Pipe()
	toClient, output := io.Pipe()
	copied := make(chan error, 1)
	go func() { copied <- Copy(t.Context(), halves{fromClient, output}, conn) }()
	if data, err := io.ReadAll(toClient); err != nil || len(data) != 0 { // until Copy has closed it
		t.Errorf("%q, %v", data, err)
	}
	fmt.Fprint(client, "late")
	_ = client.Close()
	if got := await(t, "the bytes", arrived); got != "late <nil>" {
		t.Error(got)
	}
	if err := await(t, "the end of Copy", copied); err != nil {
		t.Error(err)
	}
}

// virtual-kubelet passed each of the two timeouts as the other.
func TestForwardsEndAfterTheIdleTimeoutNotTheCreationTimeout(t *testing.T) {
	r := start(t, &testBackend{forward: echo}, func(cfg *Config) {
		cfg.StreamIdleTimeout, cfg.StreamCreationTimeout = 50*time.Millisecond, time.Hour
	})
	_, stop := r.forwarder(t, overSPDY)
	defer stop()
	r.awaitRequest(endpointPortForward) // waits for less than an hour
}
