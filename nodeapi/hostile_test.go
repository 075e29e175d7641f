// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/nodeapi/internal/wire"
)

// rawSPDY upgrades a connection by hand, for clients that break rules.
type rawSPDY struct {
	net.Conn
	*rig
	framer *spdy.Framer
	next   uint32
}

func (r *rig) rawSPDY(path, protocol string) *rawSPDY {
	r.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer admin\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n\r\n", path, protocol)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		r.Fatal(err, resp)
	}
	framer, err := spdy.NewFramer(conn, conn)
	if err != nil {
		r.Fatal(err)
	}
	return &rawSPDY{conn, r, framer, 1}
}

// open opens a stream and does not wait for the reply. Headers are names and values.
func (c *rawSPDY) open(headers ...string) (id uint32, err error) {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	id = c.next
	c.next += 2
	return id, c.framer.WriteFrame(&spdy.SynStreamFrame{StreamId: spdy.StreamId(id), Headers: h})
}

// flood sends data frames until the server does not take them any more. It returns
// the number of bytes.
func (c *rawSPDY) flood(id uint32, frame, most int) (sent int) {
	data := make([]byte, 8+frame)
	binary.BigEndian.PutUint32(data, id)
	binary.BigEndian.PutUint32(data[4:], uint32(frame))
	for sent < most {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := c.Write(data)
		if sent += n; err != nil {
			break
		}
	}
	return sent
}

// heap is the memory that is in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// nothingLeft reports whether no goroutine serves an upgraded connection.
func nothingLeft(stacks []byte) bool {
	return !bytes.Contains(stacks, []byte("internal/wire.")) && !bytes.Contains(stacks, []byte("spdystream.")) && !bytes.Contains(stacks, []byte("wsstream."))
}

const (
	execPath    = "/exec/default/web/main?command=x&input=1&output=1"
	attachPath  = "/attach/default/web/main?input=1&output=1"
	forwardPath = "/portForward/default/web"
)

// TestInputThatIsNotReadTakesLittleMemory: one connection took 800 MiB, and kept them
// after its client was gone.
func TestInputThatIsNotReadTakesLittleMemory(t *testing.T) {
	b, started, _ := unreadBackend()
	r := start(t, b, nil)
	for name, flood := range unreadClients(r, started, 64<<20) {
		before := heap()
		flood()
		if took := heap() - before; took > 8<<20 {
			t.Errorf("%s: %d MiB are in use after a client has sent up to 64 MiB that are not read", name, took>>20)
		}
	}
	r.stop()
	awaitStacks(t, "the connections to end", nothingLeft)
}

// TestStreamsThatWaitForTheirPairTakeLittleMemory: each kept its headers, thousands of
// values in a few bytes of the connection, and for StreamCreationTimeout after the
// client was gone.
func TestStreamsThatWaitForTheirPairTakeLittleMemory(t *testing.T) {
	const conns = 8
	b, _, _ := unreadBackend()
	r := start(t, b, func(cfg *Config) { cfg.StreamCreationTimeout = time.Hour })
	// used leaves out what spans of the heap have to spare.
	used := func() int64 {
		heap() // twice, for what has a finalizer
		heap()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	many := strings.Repeat("\x00", 1000)
	for name, more := range map[string][]string{"no more headers": nil, "headers of many values": {"x", many, "y", many, "z", many}} {
		var sent bytes.Buffer // by each client
		framer, err := spdy.NewFramer(&sent, nil)
		if err != nil {
			t.Fatal(err)
		}
		streams := &rawSPDY{framer: framer, next: 1}
		for i := range maxForwards {
			_, _ = streams.open(append(more, "streamType", "data", "port", "80", "requestID", fmt.Sprintf("%01000d", i))...)
		}
		_, _ = streams.open("streamType", "none") // is refused
		before := used()
		var open []*rawSPDY
		for range conns {
			c := r.rawSPDY(forwardPath, "portforward.k8s.io")
			_, _ = c.Write(sent.Bytes())
			for err := error(nil); err == nil; {
				var frame spdy.Frame
				if frame, err = c.framer.ReadFrame(); err == nil {
					if _, refused := frame.(*spdy.RstStreamFrame); refused {
						break
					}
				}
			}
			open = append(open, c)
		}
		took := (used() - before) / conns
		for _, c := range open {
			_ = c.Close()
		}
		awaitStacks(t, "the connections to end", func(s []byte) bool { return nothingLeft(s) && r.streams.count() == 0 })
		clear(open)
		kept := (used() - before) / conns
		if took > 1<<20 || kept > 256<<10 {
			t.Errorf("%s: %d KiB are in use for each connection, and %d KiB after its end", name, took>>10, kept>>10)
		}
	}
}

// TestTheHeaderFieldsOfARequestAreLimited: a stream kept a megabyte of empty ones.
func TestTheHeaderFieldsOfARequestAreLimited(t *testing.T) {
	b, _, _ := unreadBackend()
	b.logs = func(context.Context, Container, LogOptions) (io.ReadCloser, error) { return text("all"), nil }
	r := start(t, b, nil)
	for _, c := range []struct{ fields, code int }{{maxFields, 200}, {maxFields + 1, 431}} {
		w, req := httptest.NewRecorder(), r.request("/containerLogs/default/web/main")
		req.Header["X"] = make([]string, 2) // next to the token, which the authenticator removes
		for i := range c.fields - 2 {
			req.Header.Set(fmt.Sprint("x", i), "")
		}
		if r.ServeHTTP(w, req); w.Code != c.code {
			t.Errorf("%d fields: %d %s", c.fields, w.Code, w.Body)
		}
	}
}

// TestStreamsThatNobodyAskedForEndTheConnection: each of them kept a goroutine of the
// connection, and what was queued behind it, after the client was gone.
func TestStreamsThatNobodyAskedForEndTheConnection(t *testing.T) {
	b, started, _ := unreadBackend()
	r := start(t, b, nil)
	for _, path := range []string{execPath, attachPath} {
		c := r.rawSPDY(path, "v4.channel.k8s.io")
		for _, kind := range []string{"error", "stdout", "stdin", "stderr", "resize"} { // the last two have no effect
			if _, err := c.open("streamType", kind); err != nil {
				t.Fatal(err)
			}
		}
		await(t, "the call", started)
		for err := error(nil); err == nil; {
			_, err = c.open("streamType", "stdin")
		}
		_ = c.Close()
	}
	c := r.rawSPDY(execPath, "v4.channel.k8s.io") // before the command begins
	_, _ = c.open("streamType", "unknown")
	r.awaitEnd(c)
	awaitStacks(t, "the connections to end", nothingLeft)
}

// awaitEnd waits until the server closes the connection.
func (r *rig) awaitEnd(c net.Conn) {
	r.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		r.Fatal("the server does not close the connection")
	}
}

func TestAClientThatDoesNotOpenItsStreamsIsGivenUp(t *testing.T) {
	b, _, _ := unreadBackend()
	r := start(t, b, func(cfg *Config) { cfg.StreamCreationTimeout = 10 * time.Millisecond })
	c := r.rawSPDY(execPath, "v4.channel.k8s.io")
	_, _ = c.open("streamType", "error")
	r.awaitEnd(c)
	if done := r.awaitRequest(endpointExec); done.Err == nil || !strings.Contains(done.Err.Error(), "in time") {
		t.Error(done.Err)
	}
	// Half of a forward goes, and the others of the connection go on.
	c = r.rawSPDY(forwardPath, "portforward.k8s.io")
	id, _ := c.open("streamType", "error", "port", "80", "requestID", "1")
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if reset, ok := frame.(*spdy.RstStreamFrame); ok {
			if uint32(reset.StreamId) != id {
				t.Errorf("stream %d is reset", reset.StreamId)
			}
			break
		}
	}
	awaitStacks(t, "nothing but the reader", func(s []byte) bool { return !bytes.Contains(s, []byte("(*forwards).forward(")) })
}

// TestTheForwardsOfAConnectionAreLimited: one request opened any number of them.
func TestTheForwardsOfAConnectionAreLimited(t *testing.T) {
	b, started, _ := unreadBackend()
	r := start(t, b, nil)
	c := r.rawSPDY(forwardPath, "portforward.k8s.io")
	refused := make(chan uint32, 1000)
	go func() {
		defer close(refused)
		for {
			frame, err := c.framer.ReadFrame()
			if err != nil {
				return
			}
			if reset, ok := frame.(*spdy.RstStreamFrame); ok {
				refused <- uint32(reset.StreamId)
			}
		}
	}()
	for i := range maxForwards {
		for _, kind := range []string{"error", "data"} {
			if _, err := c.open("streamType", kind, "port", "80", "requestID", strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
		await(t, "a forward", started)
	}
	for _, headers := range [][]string{
		{"streamType", "error", "port", "80", "requestID", "more"},
		{"streamType", "error", "port", "80", "requestID", "1"}, // a second one
		{"streamType", "stdin", "port", "80", "requestID", "1"},
		{"streamType", "error", "port", "0", "requestID", "x"},
		{"streamType", "error", "port", "65536", "requestID", "x"},
		{"streamType", "error", "port", "80"},
	} {
		id, err := c.open(headers...)
		if err != nil {
			t.Fatal(err)
		}
		if got := await(t, "the refusal", refused); got != id {
			t.Errorf("%v: stream %d is refused, want %d", headers, got, id)
		}
	}
	if n := r.streams.count(); n != 1+maxForwards {
		t.Errorf("%d streams are open", n)
	}
	_ = c.Close()
	awaitStacks(t, "the forwards to end", func(s []byte) bool {
		return nothingLeft(s) && !bytes.Contains(s, []byte("(*forwards).forward(")) && r.streams.count() == 0
	})
}

// TestASecondDataStreamDoesNotChangeThePort: it was refused after it had.
func TestASecondDataStreamDoesNotChangeThePort(t *testing.T) {
	ports := make(chan uint16, 1)
	r := start(t, &testBackend{forward: func(_ context.Context, _ Pod, port uint16, _ io.ReadWriteCloser) error {
		ports <- port
		return nil
	}}, nil)
	c := r.rawSPDY(forwardPath, "portforward.k8s.io")
	for _, headers := range [][]string{
		{"streamType", "data", "port", "80", "requestID", "0"},
		{"streamType", "data", "port", "81", "requestID", "0"},
		{"streamType", "error", "port", "80", "requestID", "0"},
		{"streamType", "data", "port", "82", "requestID", "0"},
	} {
		if _, err := c.open(headers...); err != nil {
			t.Fatal(err)
		}
	}
	if port := await(t, "the forward", ports); port != 80 {
		t.Errorf("port %d is forwarded", port)
	}
}

// TestAForwardThatItsClientResetsEndsAlone: one that was blocked by its pod did not end,
// and others were told that they had failed, by which kubectl ends all.
func TestAForwardThatItsClientResetsEndsAlone(t *testing.T) {
	blocked := func(ctx context.Context, stream io.ReadWriteCloser) error {
		conn, far := net.Pipe() // far is not read
		defer func() { _ = far.Close() }()
		return Copy(ctx, stream, conn)
	}
	talking := func(_ context.Context, stream io.ReadWriteCloser) error {
		_, err := io.Copy(stream, &pattern{})
		return err
	}
	reading := func(_ context.Context, stream io.ReadWriteCloser) error {
		_, err := io.Copy(io.Discard, stream)
		return err
	}
	for name, backend := range map[string]func(context.Context, io.ReadWriteCloser) error{"blocked": blocked, "talking": talking, "reading": reading} {
		ended := make(chan error, 1)
		r := start(t, &testBackend{forward: func(ctx context.Context, _ Pod, port uint16, stream io.ReadWriteCloser) error {
			if port == 443 {
				return echo(ctx, Pod{}, port, stream)
			}
			fmt.Fprint(stream, "begun")
			err := backend(ctx, stream)
			ended <- err
			return err
		}}, nil)
		c := r.rawSPDY(forwardPath, "portforward.k8s.io")
		pair := func(port string) (failure, data uint32) {
			failure, _ = c.open("streamType", "error", "port", port, "requestID", port)
			data, _ = c.open("streamType", "data", "port", port, "requestID", port)
			return failure, data
		}
		// until reads frames until a stream has bytes or its end.
		until := func(id uint32) (data []byte, end bool) {
			for {
				frame, err := c.framer.ReadFrame()
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if f, ok := frame.(*spdy.DataFrame); ok && uint32(f.StreamId) == id {
					return f.Data, f.Flags&spdy.DataFlagFin != 0
				}
			}
		}
		failure, data := pair("80")
		until(data)
		_ = c.framer.WriteFrame(&spdy.DataFrame{StreamId: spdy.StreamId(data), Data: []byte("upload")})
		if name == "blocked" {
			awaitStacks(t, "the write to the pod", func(s []byte) bool { return bytes.Contains(s, []byte("net.(*pipe).write")) })
		}
		_ = c.framer.WriteFrame(&spdy.RstStreamFrame{StreamId: spdy.StreamId(data), Status: spdy.Cancel})
		if got, end := until(failure); len(got) > 0 || !end {
			t.Errorf("%s: the client is told %q", name, got)
		}
		if err := await(t, "the forward", ended); name == "blocked" && err != nil || name != "blocked" && !errors.Is(err, wire.ErrReset) {
			t.Errorf("%s: %v", name, err)
		}
		_, data = pair("443")
		if got, end := until(data); string(got) != "  443:" || end {
			t.Errorf("%s: the next forward sends %q", name, got)
		}
		_ = c.Close()
	}
}

func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// TestAClientThatLeavesDuringAForwardLeavesNothing: one that left between its data
// stream and the call of the backend left goroutines.
func TestAClientThatLeavesDuringAForwardLeavesNothing(t *testing.T) {
	r := start(t, &testBackend{forward: echo}, nil)
	for i := range 50 {
		c := r.rawSPDY(forwardPath, "portforward.k8s.io")
		for _, kind := range []string{"error", "data"} {
			_, _ = c.open("streamType", kind, "port", "80", "requestID", strconv.Itoa(i))
		}
		if i%2 == 0 {
			_ = c.NetConn().(*net.TCPConn).SetLinger(0) // a reset
		}
		_ = c.Close()
	}
	awaitStacks(t, "the connections to end", nothingLeft)
}

func (c *rawSPDY) NetConn() net.Conn { return c.Conn.(*tls.Conn).NetConn() }

// TestNoTenantHoldsAllStreams: the followers of one pod, or of some pods of one namespace,
// denied all others.
func TestNoTenantHoldsAllStreams(t *testing.T) {
	s := newStreams(100, time.Hour, nil)
	fill := func(of share, want int) (ends []func()) {
		t.Helper()
		for {
			_, _, end, err := s.begin(t.Context(), of)
			if err != nil {
				if len(ends) != want || !strings.Contains(err.Error(), "maximum") {
					t.Errorf("%v has %d streams, want %d: %v", of, len(ends), want, err)
				}
				return ends
			}
			ends = append(ends, end)
		}
	}
	of := func(namespace, pod, user string) share { return share{namespace, namespace + "/" + pod, user} }
	ends := fill(of("a", "web", "one"), 25)
	fill(of("a", "web", "two"), 0) // the pod's share
	fill(of("a", "api", "one"), 8)
	fill(of("a", "job", "two"), 0) // the namespace's share
	fill(of("b", "web", "one"), 25)
	fill(of("c", "web", "one"), 17) // the user's share
	fill(of("c", "web", "two"), 8)
	fill(of("d", "web", "two"), 17) // all
	ends[0]()
	fill(of("d", "web", "two"), 1)
	few := newStreams(3, time.Hour, nil)
	s = few
	fill(of("a", "web", "one"), 3)
}

// TestTheLastReportOfStreamsHasTheirNumber: reports overtook each other, and a gauge kept
// a stream that had ended.
func TestTheLastReportOfStreamsHasTheirNumber(t *testing.T) {
	var reports []StreamsOpen
	s := newStreams(10, time.Hour, nil)
	_, _, first, _ := s.begin(t.Context(), share{})
	_, _, second, _ := s.begin(t.Context(), share{})
	var ends sync.WaitGroup
	s.opened = func(_ context.Context, open StreamsOpen) {
		if open.Open == 1 { // and is overtaken
			ends.Go(second)
			for s.count() > 0 {
				runtime.Gosched()
			}
			for range 1000 {
				runtime.Gosched()
			}
		}
		reports = append(reports, open)
	}
	first()
	ends.Wait()
	s.stop()
	if _, _, _, err := s.begin(t.Context(), share{}); err == nil {
		t.Error("a stream began after stop")
	}
	if n := len(reports); n != 3 || reports[1].Open != 0 || reports[2] != (StreamsOpen{}) {
		t.Errorf("reports: %+v", reports)
	}
}

// TestAFollowerThatDoesNotReadIsGivenUp: it held its stream without limit.
func TestAFollowerThatDoesNotReadIsGivenUp(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		r := start(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) {
			return io.NopCloser(&pattern{}), nil
		}}, nil)
		r.stall = 10 * time.Millisecond
		client := insecureClient(nil)
		client.Transport.(*http.Transport).ForceAttemptHTTP2 = protocol == "h2"
		defer client.CloseIdleConnections()
		resp, err := client.Do(r.request("/containerLogs/default/web/main?follow=true"))
		if err != nil {
			t.Fatal(err)
		}
		if done := r.awaitRequest(endpointLogs); done.Err == nil || !strings.Contains(done.Err.Error(), "has not read") {
			t.Errorf("%s: %v", protocol, done.Err)
		}
		_ = resp.Body.Close()
	}
}

// TestAQuietLogIsNotGivenUp: only a write that is not read counts.
func TestAQuietLogIsNotGivenUp(t *testing.T) {
	lines := make(chan string)
	r := start(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) {
		return io.NopCloser(readerFunc(func(p []byte) (int, error) {
			line, ok := <-lines
			if !ok {
				return 0, io.EOF
			}
			return copy(p, line), nil
		})), nil
	}}, nil)
	r.stall = 100 * time.Millisecond
	client := insecureClient(nil)
	defer client.CloseIdleConnections()
	resp, err := client.Do(r.request("/containerLogs/default/web/main?follow"))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(err, resp)
	}
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	for range 2 {
		lines <- "line\n"
		if got, err := in.ReadString('\n'); err != nil || got != "line\n" {
			t.Errorf("%q, %v", got, err)
		}
		<-time.After(2 * r.stall)
	}
	close(lines)
}

// TestABodyThatNeverComesIsNotWaitedFor: its connection was held without limit, before
// and after authentication.
func TestABodyThatNeverComesIsNotWaitedFor(t *testing.T) {
	r := startEverything(t, nil)
	r.bodyTimeout = 50 * time.Millisecond
	for _, c := range []struct {
		token string
		code  int
	}{{"", 401}, {"invented", 401}, {"none", 403}, {"admin", 200}} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /run/default/web/main?cmd=id HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\nContent-Length: 10\r\n\r\n", c.token)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != c.code || c.code == 401 && !resp.Close {
			t.Error(c, err, resp)
		}
		r.awaitEnd(conn)
		_ = conn.Close()
	}
}

// TestAFailedCommandIsLoggedByTheProgram: each wrote an error to the process's log.
func TestAFailedCommandIsLoggedByTheProgram(t *testing.T) {
	var out lockedBuffer
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	defer func() {
		klog.SetOutput(os.Stderr)
		klog.LogToStderr(true)
	}()
	r := start(t, &testBackend{
		exec:    func(context.Context, Container, []string, Streams) error { return errors.New("no such command") },
		attach:  func(context.Context, Container, Streams) error { return errors.New("no such process") },
		forward: func(context.Context, Pod, uint16, io.ReadWriteCloser) error { return errors.New("no such port") },
	}, nil)
	for _, path := range []string{execPath, attachPath} {
		got := r.webSocket(path, "v4.channel.k8s.io").until(3)[3]
		if err := r.stream(t.Context(), path, remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard}); err == nil || !strings.Contains(err.Error(), "no such") || !strings.Contains(got, "no such") {
			t.Errorf("%v, %q", err, got)
		}
	}
	if got := r.webSocket(forwardPath+"?port=80", "v4.channel.k8s.io").until(9)[1]; !strings.Contains(got, "error forwarding port 80 to pod web, uid 1234-abcd: no such port") {
		t.Errorf("%q", got)
	}
	r.stop()
	klog.Flush()
	if got := out.String(); got != "" {
		t.Errorf("the process's log has %q", got)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}
