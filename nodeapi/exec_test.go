// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	nodeexec "k8s.io/utils/exec"
)

// stream runs a command through SPDY, as an API server does.
func (r *rig) stream(ctx context.Context, path string, opts remotecommand.StreamOptions) error {
	r.Helper()
	return r.streamOver(ctx, overSPDY, path, opts)
}

// streamOver runs a command through a transport.
func (r *rig) streamOver(ctx context.Context, over, path string, opts remotecommand.StreamOptions) error {
	r.Helper()
	u, err := url.Parse(r.url + path)
	if err != nil {
		r.Fatal(err)
	}
	executor, err := remotecommand.NewSPDYExecutor(r.config("admin"), http.MethodPost, u)
	if over == overWebSocket {
		executor, err = remotecommand.NewWebSocketExecutor(r.config("admin"), http.MethodGet, u.String())
	}
	if err != nil {
		r.Fatal(err)
	}
	return executor.StreamWithContext(ctx, opts)
}

func TestExecPassesStreamsAndExitCode(t *testing.T) {
	overBoth(t, func(t *testing.T, over string) {
		r := start(t, &testBackend{exec: func(_ context.Context, c Container, command []string, s Streams) error {
			if c.String() != "default/web/main" || !slices.Equal(command, []string{"sh", "-c", "a b"}) || s.TTY || s.Resize != nil {
				t.Errorf("%s %q %+v", c, command, s)
			}
			data, err := io.ReadAll(s.Stdin)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Stdout, "out %s", data)
			fmt.Fprintf(s.Stderr, "err")
			return utilexec.CodeExitError{Err: errors.New("exit 7"), Code: 7}
		}}, nil)
		var stdout, stderr bytes.Buffer
		err := r.streamOver(t.Context(), over, "/exec/default/web/main?command=sh&command=-c&command=a+b&input=1&output=1&error=1",
			remotecommand.StreamOptions{Stdin: strings.NewReader("in"), Stdout: &stdout, Stderr: &stderr})
		var code utilexec.CodeExitError
		if !errors.As(err, &code) || code.Code != 7 || stdout.String() != "out in" || stderr.String() != "err" {
			t.Errorf("%v, out %q, err %q", err, stdout.String(), stderr.String())
		}
		if done := r.awaitRequest(endpointExec); done.Code != 101 || done.User != "admin" {
			t.Errorf("%+v", done)
		}
	})
}

func TestErrorsBecomeExitCodes(t *testing.T) {
	run := exec.Command("sh", "-c", "exit 3").Run()
	killed := exec.Command("sh", "-c", "kill -9 $$").Run()
	for _, c := range []struct {
		err  error
		code int // -1: not an exit code, 0: success
	}{
		{nil, 0}, {run, 3}, {fmt.Errorf("wrapped: %w", run), 3}, {killed, 137}, {fmt.Errorf("wrapped: %w", killed), 137}, {errors.New("other"), -1},
		{utilexec.CodeExitError{Err: errors.New("x"), Code: 9}, 9}, {utilexec.CodeExitError{Err: errors.New("x")}, 0},
	} {
		var exit nodeexec.CodeExitError
		switch err := asExit(c.err); {
		case c.code == 0 && err != nil, c.code > 0 && (!errors.As(err, &exit) || exit.Code != c.code), c.code < 0 && !errors.Is(err, c.err):
			t.Errorf("%v became %v", c.err, err)
		}
	}
}

// pattern yields bytes that differ from place to place.
type pattern struct{ n uint32 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		p.n = p.n*1664525 + 1013904223
		b[i] = byte(p.n >> 24)
	}
	return len(b), nil
}

func TestATerminalHasOneOutputAndIsResized(t *testing.T) {
	sizes := make(chan TerminalSize)
	after := make(chan bool, 1)
	r := start(t, &testBackend{exec: func(ctx context.Context, _ Container, _ []string, s Streams) error {
		if !s.TTY || s.Stderr != nil {
			t.Errorf("%+v", s)
		}
		sizes <- <-s.Resize
		sizes <- <-s.Resize
		<-ctx.Done() // the client is gone
		_, more := <-s.Resize
		after <- more
		return ctx.Err()
	}}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	queue := make(sizeQueue, 2)
	failed := make(chan error, 1)
	go func() {
		// A terminal and stderr were refused by virtual-kubelet.
		failed <- r.stream(ctx, "/exec/default/web/main?command=sh&input=1&output=1&error=1&tty=1",
			remotecommand.StreamOptions{Stdin: eternal{ctx}, Stdout: io.Discard, Tty: true, TerminalSizeQueue: queue})
	}()
	for _, want := range []TerminalSize{{80, 24}, {100, 50}} {
		queue <- &remotecommand.TerminalSize{Width: want.Width, Height: want.Height}
		if got := await(t, "a size", sizes); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	cancel()
	<-failed
	if await(t, "the command to end", after) {
		t.Error("a size came after the client was gone")
	}
}

type sizeQueue chan *remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize { return <-q }

// eternal is input that never comes.
type eternal struct{ ctx context.Context }

func (e eternal) Read([]byte) (int, error) { <-e.ctx.Done(); return 0, io.EOF }

func TestTerminalSizesThatAreNotReadDoNotStopTheStreams(t *testing.T) {
	for _, tty := range []string{"0", "1"} {
		r := start(t, &testBackend{exec: func(_ context.Context, _ Container, _ []string, s Streams) error {
			_, err := io.CopyN(s.Stdout, s.Stdin, 5)
			return err
		}}, nil)
		ws := r.webSocket("/exec/default/web/main?command=cat&input=1&output=1&tty="+tty, "v4.channel.k8s.io")
		for i := range 10 {
			ws.write(4, fmt.Sprintf(`{"Width":%d,"Height":24}`, i))
		}
		ws.write(0, "hello")
		if got := ws.until(3); !strings.Contains(got[3], `"Success"`) || got[1] != "hello" {
			t.Errorf("tty=%s: %q", tty, got)
		}
	}
}

// webSocket is a client that speaks the protocol of its subprotocol by hand.
type webSocket struct {
	*websocket.Conn
	*rig
}

func (r *rig) webSocket(path, protocol string) *webSocket {
	r.Helper()
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	if protocol != "" {
		dialer.Subprotocols = []string{protocol}
	}
	conn, resp, err := dialer.DialContext(r.Context(), "wss"+strings.TrimPrefix(r.url, "https")+path, http.Header{"Authorization": {"Bearer admin"}})
	if err != nil {
		r.Fatal(err, resp)
	}
	r.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	return &webSocket{conn, r}
}

func (w *webSocket) write(channel byte, data string) {
	w.Helper()
	if err := w.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, data...)); err != nil {
		w.Fatal(err)
	}
}

// until reads until a channel has data or the connection ends, and returns what
// came by channel.
func (w *webSocket) until(channel byte) map[byte]string {
	w.Helper()
	got := make(map[byte]string)
	for got[channel] == "" {
		_, data, err := w.ReadMessage()
		if err != nil {
			return got
		}
		if len(data) > 0 {
			got[data[0]] += string(data[1:])
		}
	}
	return got
}

func TestOldWebSocketProtocolsAreServed(t *testing.T) {
	r := start(t, &testBackend{exec: func(_ context.Context, _ Container, _ []string, s Streams) error {
		fmt.Fprint(s.Stdout, "out")
		fmt.Fprint(s.Stderr, "err")
		return utilexec.CodeExitError{Err: errors.New("exit 5"), Code: 5}
	}}, nil)
	const path = "/exec/default/web/main?command=x&output=1&error=1"
	got := r.webSocket(path, "v4.channel.k8s.io").until(3)
	var status struct {
		Reason  string
		Details struct{ Causes []struct{ Message string } }
	}
	if err := json.Unmarshal([]byte(got[3]), &status); err != nil || got[1] != "out" || got[2] != "err" || status.Reason != "NonZeroExitCode" || status.Details.Causes[0].Message != "5" {
		t.Errorf("v4: %v %q", err, got)
	}
	for _, protocol := range []string{"channel.k8s.io", ""} {
		if got := r.webSocket(path, protocol).until(3); got[1] != "out" || !strings.Contains(got[3], "exit 5") {
			t.Errorf("%q: %q", protocol, got)
		}
	}
}

// TestStreamsThatWereNotAskedForAreNil: the library opens all streams of a WebSocket,
// and a backend ends the input of the container when Stdin is at its end.
func TestStreamsThatWereNotAskedForAreNil(t *testing.T) {
	seen := make(chan Streams, 1)
	see := func(s Streams) error {
		seen <- s
		return nil
	}
	r := start(t, &testBackend{
		exec:   func(_ context.Context, _ Container, _ []string, s Streams) error { return see(s) },
		attach: func(_ context.Context, _ Container, s Streams) error { return see(s) },
	}, nil)
	clients := map[string]func(path string){
		"SPDY": func(path string) {
			opts := remotecommand.StreamOptions{}
			for query, set := range map[string]func(){
				"input=1":  func() { opts.Stdin = strings.NewReader("") },
				"output=1": func() { opts.Stdout = io.Discard },
				"error=1":  func() { opts.Stderr = io.Discard },
			} {
				if strings.Contains(path, query) {
					set()
				}
			}
			if err := r.stream(t.Context(), path, opts); err != nil {
				t.Error(err)
			}
		},
	}
	for _, protocol := range []string{"v4.channel.k8s.io", "channel.k8s.io", ""} {
		clients["WebSocket "+protocol] = func(path string) { r.webSocket(path, protocol).until(3) }
	}
	for name, connect := range clients {
		for _, kind := range []endpoint{endpointExec, endpointAttach} {
			for _, query := range []string{"input=1", "output=1", "error=1", "input=1&output=1&error=1"} {
				connect("/" + string(kind) + "/default/web/main?command=x&" + query)
				s := await(t, "the call", seen)
				for param, set := range map[string]bool{"input": s.Stdin != nil, "output": s.Stdout != nil, "error": s.Stderr != nil} {
					if asked := strings.Contains(query, param); set != asked {
						t.Errorf("%s %s %s: %s is set: %t", name, kind, query, param, set)
					}
				}
			}
		}
	}
}

func TestTheServerDecidesTheProtocols(t *testing.T) {
	r := startEverything(t, nil)
	// virtual-kubelet took the supported protocols from the client's header.
	client := insecureClient(nil)
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	defer client.CloseIdleConnections()
	req := r.request("/exec/default/web/main?command=id&output=1")
	req.Method = http.MethodPost
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	req.Header.Set("X-Stream-Protocol-Version", "v9.channel.k8s.io")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 403 || resp.Header.Values("X-Accepted-Stream-Protocol-Versions") == nil {
		t.Error(resp.Status, resp.Header)
	}
}

func TestALostClientCancelsItsCalls(t *testing.T) {
	overBoth(t, func(t *testing.T, over string) {
		b, started, ended := unreadBackend()
		r := start(t, b, nil)
		clients := map[string]func() (lose func()){
			"port-forward": func() func() {
				addresses, stop := r.forwarder(t, over)
				dial(t, addresses[80])
				return stop
			},
		}
		for _, path := range []string{execPath, attachPath} {
			clients[path] = func() func() {
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					_ = r.streamOver(ctx, over, path, remotecommand.StreamOptions{Stdin: eternal{ctx}, Stdout: io.Discard})
				}()
				return cancel
			}
		}
		for name, connect := range clients {
			lose := connect()
			await(t, "the call of "+name, started)
			lose()
			if err := await(t, "the end of "+name, ended); !errors.Is(err, errClientGone) && name != "port-forward" { // a client may reset its forwards first
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestAPanicOfTheBackendIsContained(t *testing.T) {
	reported := make(chan error, 10)
	r := start(t, &testBackend{
		exec:    func(context.Context, Container, []string, Streams) error { panic("exec broke") },
		logs:    func(context.Context, Container, LogOptions) (io.ReadCloser, error) { panic("logs broke") },
		forward: func(context.Context, Pod, uint16, io.ReadWriteCloser) error { panic("forward broke") },
	}, func(cfg *Config) {
		cfg.ErrorHandler = func(_ context.Context, err error, _ string) { reported <- err }
		cfg.Configz = func() (any, error) { panic("configz broke") }
	})
	if err := r.stream(t.Context(), "/exec/default/web/main?command=x&output=1", remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
		t.Error("no error")
	}
	for _, path := range []string{"/containerLogs/default/web/main", "/configz"} {
		if code, body := r.get(path); code != 500 || strings.Contains(body, "broke") {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	r.webSocket(forwardPath+"?port=80", "v4.channel.k8s.io").until(9)
	for range 4 {
		var p *PanicError
		if err := await(t, "a report", reported); !errors.As(err, &p) || !strings.Contains(err.Error(), "broke") {
			t.Error(err)
		}
	}
}

// TestAPanicOfAHookIsContained: one in a forward ended the process, and Run waited
// without limit for the stream of a request.
func TestAPanicOfAHookIsContained(t *testing.T) {
	reported := make(chan error, 100)
	r := start(t, &testBackend{
		logs:    func(context.Context, Container, LogOptions) (io.ReadCloser, error) { return text("log"), nil },
		forward: echo,
	}, func(cfg *Config) {
		cfg.Hooks = Hooks{Streams: func(StreamsOpen) { panic("streams broke") }, Request: func(Request) { panic("request broke") }}
		cfg.ErrorHandler = func(_ context.Context, err error, _ string) {
			reported <- err
			panic("handler broke")
		}
	})
	if code, body := r.get("/containerLogs/default/web/main"); code != 200 || body != "log" {
		t.Errorf("%d %q", code, body)
	}
	addresses, stop := r.forwarder(t, overSPDY)
	conn := dial(t, addresses[80])
	fmt.Fprint(conn, "all")
	_ = conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || !strings.Contains(string(got), "all") {
		t.Errorf("%q, %v", got, err)
	}
	stop()
	stopped := make(chan struct{})
	go func() {
		r.stop()
		close(stopped)
	}()
	await(t, "Run", stopped)
	seen := map[any]bool{}
	for len(reported) > 0 {
		if failed, ok := errors.AsType[*PanicError](<-reported); ok {
			seen[failed.Value] = true
		}
	}
	if !seen["streams broke"] || !seen["request broke"] {
		t.Errorf("reported: %v", seen)
	}
}

// TestTheAnswerOfRunHasADeadline: a client that did not read it held its stream.
func TestTheAnswerOfRunHasADeadline(t *testing.T) {
	for _, fail := range []error{nil, errors.New("no such command")} {
		r := start(t, &testBackend{exec: func(context.Context, Container, []string, Streams) error { return fail }}, nil)
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		req := r.request("/run/default/web/main?cmd=ls")
		req.Method = http.MethodPost
		r.ServeHTTP(w, req)
		none := slices.IndexFunc(w.at, time.Time.IsZero) // while it runs
		if none < 0 || none == len(w.at)-1 || slices.ContainsFunc(w.at[none+1:], func(at time.Time) bool { return !at.After(time.Now()) }) {
			t.Errorf("the deadlines are %v", w.at)
		}
	}
}

// deadlines records the deadlines for writing.
type deadlines struct {
	*httptest.ResponseRecorder
	at []time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.at = append(d.at, at)
	return nil
}

func TestRunAnswersWithTheOutput(t *testing.T) {
	r := start(t, &testBackend{exec: func(_ context.Context, _ Container, command []string, s Streams) error {
		fmt.Fprintf(s.Stdout, "%q", command)
		if len(command) > 1 {
			return utilexec.CodeExitError{Err: errors.New("exit status 2"), Code: 2}
		}
		_, err := s.Stderr.Write(make([]byte, 2*maxRunOutput))
		return err
	}}, nil)
	if code, body := r.do(http.MethodPost, "/run/default/web/main?cmd=ls+-l", "admin", nil); code != 500 || !strings.Contains(body, `["ls" "-l"]`) || !strings.Contains(body, "exit status 2") {
		t.Errorf("%d %q", code, body)
	}
	if code, body := r.do(http.MethodPost, "/run/default/web/main?cmd=ls", "admin", nil); code != 200 || len(body) > maxRunOutput+100 || !strings.Contains(body, "further bytes") {
		t.Errorf("%d, %d bytes", code, len(body))
	}
	if code, _ := r.do(http.MethodPost, "/run/default/web/main", "admin", nil); code != 400 {
		t.Errorf("without a command: %d", code)
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	started := make(chan struct{}, 3)
	var mu sync.Mutex
	var causes []error
	wait := func(ctx context.Context) error {
		started <- struct{}{}
		<-ctx.Done()
		mu.Lock()
		defer mu.Unlock()
		causes = append(causes, context.Cause(ctx))
		return nil
	}
	r := start(t, &testBackend{
		exec: func(ctx context.Context, _ Container, _ []string, _ Streams) error { return wait(ctx) },
		logs: func(ctx context.Context, _ Container, _ LogOptions) (io.ReadCloser, error) {
			started <- struct{}{}
			return newEndless("line\n"), nil
		},
		forward: func(ctx context.Context, _ Pod, _ uint16, _ io.ReadWriteCloser) error { return wait(ctx) },
	}, nil)
	go func() {
		_ = r.stream(context.WithoutCancel(t.Context()), "/exec/default/web/main?command=x&output=1", remotecommand.StreamOptions{Stdout: io.Discard})
	}()
	client := insecureClient(nil)
	defer client.CloseIdleConnections()
	lines, cancel := r.follow(t, client)
	defer cancel()
	r.webSocket("/portForward/default/web?port=80", "v4.channel.k8s.io")
	for range 3 {
		await(t, "a stream", started)
	}
	r.stop() // fails if Run does not return
	for range lines {
	}
	if len(causes) != 2 || !errors.Is(causes[0], errStopping) || !errors.Is(causes[1], errStopping) {
		t.Errorf("the streams ended with %v", causes)
	}
	if err := r.Check(nil); err == nil {
		t.Error("Check reports a server that has stopped as alive")
	}
	if err := r.Run(t.Context()); !errors.Is(err, ErrAlreadyRun) {
		t.Error(err)
	}
}
