// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/moby/spdystream/spdy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/kubewright/kubewright/nodeapi/internal/wire"
)

// quickly makes a Server look at its clients all the time. It must be called before
// the first request.
func (r *rig) quickly() {
	r.streams.check, r.waits.Ping = 10*time.Millisecond, 10*time.Millisecond
}

// unreadBackend has calls that read nothing and end with their client.
func unreadBackend() (b *testBackend, started chan struct{}, ended chan error) {
	started, ended = make(chan struct{}, 1000), make(chan error, 1000)
	wait := func(ctx context.Context) error {
		started <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}
	return &testBackend{
		exec:    func(ctx context.Context, _ Container, _ []string, _ Streams) error { return wait(ctx) },
		attach:  func(ctx context.Context, _ Container, _ Streams) error { return wait(ctx) },
		forward: func(ctx context.Context, _ Pod, _ uint16, _ io.ReadWriteCloser) error { return wait(ctx) },
		logs: func(ctx context.Context, _ Container, _ LogOptions) (io.ReadCloser, error) {
			started <- struct{}{}
			context.AfterFunc(ctx, func() { ended <- context.Cause(ctx) })
			return newEndless(""), nil
		},
	}, started, ended
}

// unreadClients are clients that send more than is read, up to most bytes. Each returns
// its connection.
func unreadClients(r *rig, started <-chan struct{}, most int) map[string]func() net.Conn {
	spdyClient := func(path, protocol string, streams ...[]string) func() net.Conn {
		return func() net.Conn {
			c := r.rawSPDY(path, protocol)
			var id uint32
			for _, headers := range streams {
				id, _ = c.open(headers...)
			}
			await(r.TB, "the call", started)
			c.flood(id, 64<<10, most)
			return c.NetConn()
		}
	}
	webSocketClient := func(path, protocol string) func() net.Conn {
		return func() net.Conn {
			ws := r.webSocket(path, protocol)
			await(r.TB, "the call", started)
			for range most / (64 << 10) {
				_ = ws.SetWriteDeadline(time.Now().Add(time.Second))
				if ws.WriteMessage(websocket.BinaryMessage, make([]byte, 64<<10)) != nil {
					break
				}
			}
			return ws.NetConn().(*tls.Conn).NetConn()
		}
	}
	plain := func(request string) func() net.Conn {
		return func() net.Conn {
			conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				r.Fatal(err)
			}
			r.Cleanup(func() { _ = conn.Close() })
			fmt.Fprintf(conn, request, "Host: node\r\nAuthorization: Bearer admin\r\n")
			await(r.TB, "the call", started)
			return conn.NetConn()
		}
	}
	command := [][]string{{"streamType", "error"}, {"streamType", "stdout"}, {"streamType", "stdin"}}
	return map[string]func() net.Conn{
		"exec":                    spdyClient(execPath, "v4.channel.k8s.io", command...),
		"attach":                  spdyClient(attachPath, "v4.channel.k8s.io", command...),
		"port-forward":            spdyClient(forwardPath, "portforward.k8s.io", []string{"streamType", "error", "port", "80", "requestID", "1"}, []string{"streamType", "data", "port", "80", "requestID", "1"}),
		"exec, WebSocket":         webSocketClient(execPath, "v4.channel.k8s.io"),
		"exec, WebSocket 5":       webSocketClient(execPath, "v5.channel.k8s.io"),
		"attach, WebSocket":       webSocketClient(attachPath, "v5.channel.k8s.io"),
		"port-forward, WebSocket": webSocketClient(forwardPath+"?port=80", "v4.channel.k8s.io"),
		"run, with a body":        plain("POST /run/default/web/main?cmd=id HTTP/1.1\r\n%sContent-Length: 100\r\n\r\nbytes"),
		"run, and more":           plain("POST /run/default/web/main?cmd=id HTTP/1.1\r\n%s\r\nPOST / HTTP/1.1\r\n"),
		"logs, with a body":       plain("GET /containerLogs/default/web/main?follow HTTP/1.1\r\n%sContent-Length: 100\r\n\r\nbytes"),
		"logs, and more":          plain("GET /containerLogs/default/web/main?follow HTTP/1.1\r\n%s\r\nGET / HTTP/1.1\r\n"),
	}
}

// TestAClientThatIsGoneIsNoticedBehindUnreadInput: its command ran on until
// StreamIdleTimeout, and held its share of the streams.
func TestAClientThatIsGoneIsNoticedBehindUnreadInput(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows it")
	}
	b, started, ended := unreadBackend()
	r := start(t, b, nil)
	r.quickly()
	for name, connect := range unreadClients(r, started, 8<<20) {
		conn := connect()
		for range 3 {
			r.streams.look()
		}
		select {
		case err := <-ended:
			t.Errorf("%s: it was ended while its client was there: %v", name, err)
			continue
		default:
		}
		_ = conn.Close()
		if err := await(t, "the end of "+name, ended); !errors.Is(err, errClientGone) && !errors.Is(err, errEnded) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	awaitStacks(t, "the connections to end", func(s []byte) bool { return nothingLeft(s) && r.streams.count() == 0 })
}

// TestAProxyNoticesThatItsClientIsGone: an API server that passes on the bytes of a
// client writes to the node and does not read from its client.
func TestAProxyNoticesThatItsClientIsGone(t *testing.T) {
	b, started, ended := unreadBackend()
	r := start(t, b, nil)
	r.quickly()
	node := strings.TrimPrefix(r.url, "https://")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	r.url = "https://" + listener.Addr().String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", node)
			if err != nil {
				return
			}
			one := make(chan struct{}, 2)
			go func() { _, _ = io.Copy(server, client); one <- struct{}{} }()
			go func() { _, _ = io.Copy(client, server); one <- struct{}{} }()
			go func() { <-one; _, _ = client.Close(), server.Close() }()
		}
	}()
	clients := unreadClients(r, started, 8<<20)
	for _, name := range []string{"exec", "attach", "exec, WebSocket", "exec, WebSocket 5"} {
		conn := clients[name]()
		_ = conn.Close()
		if err := await(t, "the end of "+name, ended); !errors.Is(err, errClientGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestACommandMayReadItsInputLate: a client that is there is not ended, and each byte
// arrives and comes back.
func TestACommandMayReadItsInputLate(t *testing.T) {
	overBoth(t, func(t *testing.T, over string) {
		started, read := make(chan struct{}), make(chan struct{})
		r := start(t, &testBackend{exec: func(_ context.Context, _ Container, _ []string, s Streams) error {
			close(started)
			<-read
			_, err := io.Copy(s.Stdout, s.Stdin)
			return err
		}}, nil)
		r.quickly()
		r.waits.Reset = time.Nanosecond // only forwards are reset
		want, err := io.ReadAll(io.LimitReader(&pattern{}, 8<<20))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		ended := make(chan error, 1)
		go func() {
			ended <- r.streamOver(t.Context(), over, "/exec/default/web/main?command=x&input=1&output=1", remotecommand.StreamOptions{Stdin: bytes.NewReader(want), Stdout: &out})
		}()
		await(t, "the command", started)
		awaitStacks(t, "the input to wait", func(s []byte) bool { return bytes.Contains(s, []byte("wire.(*Conn).wait(")) })
		for range 10 {
			r.streams.look()
		}
		close(read)
		if err := await(t, "the command to end", ended); err != nil || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%d bytes, %v", out.Len(), err)
		}
	})
}

// TestAConnectionWithoutASocketHasALimit: the system does not tell whether its client is
// there.
func TestAConnectionWithoutASocketHasALimit(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	s := newStreams(10, time.Hour, nil)
	s.check, s.unread = time.Hour, 0
	ctx, st, end, err := s.begin(t.Context(), share{})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	conn := s.takeOver(st)(near)
	s.look() // it was not read yet, but it will be
	go func() { _, _ = conn.Read(make([]byte, 1)) }()
	_, _ = far.Write([]byte("x"))
	awaitStacks(t, "the read", func([]byte) bool { return st.conn.unreadFor() > 0 })
	if ctx.Err() != nil {
		t.Error("it ended while it was read")
	}
	s.unread = time.Hour
	if s.look(); ctx.Err() != nil {
		t.Error("it ended before its time")
	}
	s.unread = 0
	if s.look(); !errors.Is(context.Cause(ctx), errClientGone) {
		t.Error(context.Cause(ctx))
	}
	if _, err := conn.Write(nil); err == nil {
		t.Error("the connection is open")
	}
}

// TestAPingIsNoTraffic: StreamIdleTimeout would never pass.
func TestAPingIsNoTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		s := newStreams(10, time.Hour, nil)
		s.unread = 24 * time.Hour // a pipe has no socket
		ctx, st, end, err := s.begin(t.Context(), share{})
		if err != nil {
			t.Fatal(err)
		}
		conn := s.takeOver(st)(near)
		opened := wire.SPDY(conn, bufio.NewReader(conn), wire.Waits{Ping: peerCheck}, func(*wire.Stream, http.Header) error { return nil })
		pings := make(chan int)
		go func() {
			framer, _ := spdy.NewFramer(io.Discard, far)
			for n := 0; ; n++ {
				if _, err := framer.ReadFrame(); err != nil {
					pings <- n
					return
				}
			}
		}()
		client, sent := &rawSPDY{Conn: far, next: 1}, make(chan int)
		client.framer, _ = spdy.NewFramer(far, far)
		id, _ := client.open("streamType", "stdin")
		began := time.Now()
		go func() { sent <- client.flood(id, 64<<10, 8<<20) }()
		<-ctx.Done()
		if took := time.Since(began); took != time.Hour || !errors.Is(context.Cause(ctx), errClientGone) {
			t.Errorf("it ended after %v: %v", took, context.Cause(ctx))
		}
		opened.Close(linger) // as the request does, when its context ends
		if n, took := <-pings, <-sent; n < int(time.Hour/peerCheck)-1 || took >= 8<<20 {
			t.Errorf("%d pings, %d bytes were taken", n, took)
		}
		end()
	})
}

// TestTheAPIServerIsNoTenant: two namespaces took its share, and a third had none.
func TestTheAPIServerIsNoTenant(t *testing.T) {
	s := newStreams(100, time.Hour, nil)
	fill := func(u user.Info, namespace string) (n int) {
		for i := range 100 {
			pod := Pod{Namespace: namespace, Name: fmt.Sprint("pod-", i/20)}
			if _, _, _, err := s.begin(t.Context(), shareOf(request.WithUser(t.Context(), u), pod)); err != nil {
				return n
			}
			n++
		}
		return n
	}
	apiServer := &user.DefaultInfo{Name: "kube-apiserver-kubelet-client", Extra: map[string][]string{user.CredentialIDKey: {"X509SHA256=0123"}}}
	if a, b, c, d := fill(apiServer, "a"), fill(apiServer, "b"), fill(apiServer, "c"), fill(apiServer, "d"); a != 33 || b != 33 || c != 33 || d != 1 {
		t.Error(a, b, c, d)
	}
	s = newStreams(100, time.Hour, nil)
	tenant := &user.DefaultInfo{Name: "tenant", Extra: map[string][]string{user.CredentialIDKey: {"JTI=X509SHA256="}}}
	if a, b, c := fill(tenant, "a"), fill(tenant, "b"), fill(tenant, "c"); a != 33 || b != 33 || c != 9 {
		t.Error(a, b, c)
	}
}

// TestAForwardThatThePodDoesNotReadEndsAlone: it stopped all forwards of its kubectl.
func TestAForwardThatThePodDoesNotReadEndsAlone(t *testing.T) {
	overBoth(t, func(t *testing.T, over string) {
		unread := make(chan error, 1)
		r := start(t, &testBackend{forward: func(ctx context.Context, _ Pod, port uint16, stream io.ReadWriteCloser) error {
			if port == 443 {
				return echo(ctx, Pod{}, port, stream)
			}
			<-ctx.Done()
			unread <- context.Cause(ctx)
			return ctx.Err()
		}}, nil)
		r.waits = wire.Waits{Ping: 10 * time.Millisecond, Reset: 2 * time.Second}
		addresses, stop := r.forwarder(t, over)
		defer stop()
		talk := func(conn net.Conn, text string) {
			t.Helper()
			_ = conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprint(conn, text)
			got := make([]byte, len(text))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
				t.Errorf("%q, %v", got, err)
			}
		}
		other := dial(t, addresses[443])
		if _, err := io.ReadFull(other, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		talk(other, "before")
		full := dial(t, addresses[80])
		var sending sync.WaitGroup
		sending.Go(func() { _, _ = io.Copy(full, io.LimitReader(&pattern{}, 64<<20)) })
		if err := await(t, "the reset", unread); !errors.Is(err, wire.ErrUnread) {
			t.Error(err)
		}
		talk(other, "after")
		next := dial(t, addresses[443])
		if _, err := io.ReadFull(next, make([]byte, 6)); err != nil {
			t.Error(err)
		}
		talk(next, "later")
		_ = full.Close()
		sending.Wait()
	})
}

// hostileClients are those that send more than is read, and those that break off, stand
// still or do not read at any other point. Each returns its connection.
func hostileClients(r *rig, started <-chan struct{}) map[string]func() net.Conn {
	send := func(bytes string) func() net.Conn {
		return func() net.Conn {
			conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				r.Fatal(err)
			}
			fmt.Fprint(conn, bytes)
			return conn.NetConn()
		}
	}
	ask := func(path string) func() net.Conn {
		return func() net.Conn {
			conn := r.ask(path).(*tls.Conn)
			_, _ = conn.Read(make([]byte, 1)) // the answer has begun
			return conn.NetConn()
		}
	}
	over := func(path, protocol string, then func(c *rawSPDY)) func() net.Conn {
		return func() net.Conn {
			c := r.rawSPDY(path, protocol)
			then(c)
			return c.NetConn()
		}
	}
	all := unreadClients(r, started, 8<<20)
	maps.Copy(all, map[string]func() net.Conn{
		"no handshake": func() net.Conn {
			conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "https://"))
			if err != nil {
				r.Fatal(err)
			}
			return conn
		},
		"a part of a header":           send("GET /pods HTTP/1.1\r\nHost: node\r\nX: "),
		"a stranger without its body":  send("POST /run/default/web/main?cmd=id HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer invented\r\nContent-Length: 10\r\n\r\n"),
		"a stranger of HTTP/2":         func() net.Conn { return r.connect().NetConn() },
		"an unread list":               ask("/pods"),
		"an unread list, running":      ask("/runningpods/"),
		"an unread log":                ask("/containerLogs/default/web/main?follow=true&tailLines=1"),
		"no streams of a command":      over(execPath, "v4.channel.k8s.io", func(*rawSPDY) {}),
		"no streams of a port-forward": over(forwardPath, "portforward.k8s.io", func(*rawSPDY) {}),
		"unread output": over("/exec/default/web/main?command=talk&output=1", "v4.channel.k8s.io", func(c *rawSPDY) {
			_, _ = c.open("streamType", "error")
			_, _ = c.open("streamType", "stdout")
			await(r.TB, "the call", started)
		}),
		"streams that nobody asked for": over(execPath, "v4.channel.k8s.io", func(c *rawSPDY) {
			for _, kind := range []string{"error", "stdout", "stdin", "stdin", "none"} {
				_, _ = c.open("streamType", kind)
			}
		}),
		"halves of forwards": over(forwardPath, "portforward.k8s.io", func(c *rawSPDY) {
			for i := range 2 * maxForwards {
				_, _ = c.open("streamType", "data", "port", "80", "requestID", strconv.Itoa(i))
			}
		}),
		"all forwards": over(forwardPath, "portforward.k8s.io", func(c *rawSPDY) {
			for i := range maxForwards {
				_, _ = c.open("streamType", "error", "port", "80", "requestID", strconv.Itoa(i))
				_, _ = c.open("streamType", "data", "port", "80", "requestID", strconv.Itoa(i))
				await(r.TB, "a forward", started)
			}
		}),
		"a part of a frame": over(execPath, "v4.channel.k8s.io", func(c *rawSPDY) { _, _ = c.Write([]byte{0, 0, 0, 1, 0, 1, 0}) }),
		"a part of a message": func() net.Conn {
			conn := r.webSocket(execPath, "v5.channel.k8s.io").NetConn().(*tls.Conn)
			await(r.TB, "the call", started)
			_, _ = conn.Write([]byte{0x82, 0xfe, 0xff, 0xff, 0, 0, 0, 0, 0}) // 65,535 bytes, the first of them is there
			return conn.NetConn()
		},
		"a part of a tunnel": func() net.Conn {
			ws := r.webSocket(forwardPath, tunnelProtocol)
			_ = ws.WriteMessage(websocket.BinaryMessage, []byte{0x80, 3})
			return ws.NetConn().(*tls.Conn).NetConn()
		},
	})
	return all
}

// TestTheBaselineComesBackAfterHostileClients within a minute, one after the other: what
// one of them leaves would add up. With the times of a node it takes some minutes.
func TestTheBaselineComesBackAfterHostileClients(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows that they are gone")
	}
	for name, quick := range map[string]bool{"quickly": true, "with the times of a node": false} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && !quick {
				t.Skip("the Server looks at its clients every 15 s")
			}
			b, started, ended := unreadBackend()
			wait, quiet := b.exec, b.logs
			b.exec = func(ctx context.Context, c Container, command []string, s Streams) error {
				if command[0] != "talk" {
					return wait(ctx, c, command, s)
				}
				started <- struct{}{}
				_, err := io.Copy(s.Stdout, &pattern{})
				return err
			}
			b.logs = func(ctx context.Context, c Container, opts LogOptions) (io.ReadCloser, error) {
				if opts.TailLines == nil {
					return quiet(ctx, c, opts)
				}
				return io.NopCloser(&pattern{}), nil
			}
			go func() {
				for range ended {
				}
			}()
			r := start(t, b, nil)
			r.setPods(append(largePods(100, 100<<10), testPod())...)
			if quick {
				r.quickly()
			}
			idle := insecureClient(nil)
			defer idle.CloseIdleConnections()
			r.do("GET", "/healthz", "admin", idle) // starts what stays
			before := runtime.NumGoroutine()
			clients := hostileClients(r, started)
			for _, name := range slices.Sorted(maps.Keys(clients)) {
				conn := clients[name]()
				_ = conn.Close()
				left := time.Now()
				awaitStacks(t, "the goroutines to end after: "+name, func(s []byte) bool {
					return nothingLeft(s) && r.streams.count() == 0 && len(r.plain) == 0 && runtime.NumGoroutine() <= before
				})
				t.Logf("%s: %v", name, time.Since(left))
			}
			r.stop()
			close(ended)
		})
	}
}

// TestAFollowerThatStopsReadingSlowsNoOther: each has a reader and a backlog of its own,
// which takes little memory.
func TestAFollowerThatStopsReadingSlowsNoOther(t *testing.T) {
	const followers, most = 10, 32 << 20
	r := start(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) {
		return io.NopCloser(io.LimitReader(&pattern{}, most)), nil
	}}, func(cfg *Config) { cfg.Pods = nil })
	before := heap()
	for range followers / 2 {
		r.ask("/containerLogs/default/web/main?follow=true")
	}
	awaitStacks(t, "those that do not read", func(s []byte) bool {
		return bytes.Count(s, []byte("nodeapi.(*response).send(")) == followers/2
	})
	if took := (heap() - before) / (followers / 2); took > 1<<20 {
		t.Errorf("a log that is not read takes %d KiB", took>>10)
	}
	var readers sync.WaitGroup
	for range followers / 2 {
		readers.Go(func() {
			if code, body := r.get("/containerLogs/default/web/main?follow=true"); code != 200 || len(body) != most {
				t.Errorf("%d, %d bytes", code, len(body))
			}
		})
	}
	readers.Wait()
	if n := r.streams.count(); n < followers/2 {
		t.Errorf("%d streams are open", n)
	}
}
