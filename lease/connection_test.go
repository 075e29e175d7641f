// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/kubewright/kubewright/internal/leasestub"
)

// The test of this file is in real time, over real connections: it is about
// what net/http does with them.

// proxy forwards connections until they are made to vanish.
type proxy struct {
	net.Listener
	backend string

	mu      sync.Mutex
	conns   []net.Conn
	accepts int
	void    map[net.Conn]bool // bytes from it go nowhere
}

func startProxy(t *testing.T, backend string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: listener, backend: backend, void: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", backend)
			if err != nil {
				conn.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, conn, server)
			p.accepts++
			p.mu.Unlock()
			all.Go(func() { p.forward(server, conn) })
			all.Go(func() { p.forward(conn, server) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.mu.Lock()
		for _, conn := range p.conns {
			conn.Close()
		}
		p.mu.Unlock()
		all.Wait()
	})
	return p
}

func (p *proxy) forward(to, from net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			to.Close()
			return
		}
		p.mu.Lock()
		void := p.void[from]
		p.mu.Unlock()
		if void {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			from.Close()
			return
		}
	}
}

// vanish makes the other end of all present connections vanish, without a word.
func (p *proxy) vanish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		p.void[conn] = true
	}
}

// On real connections: ResetConnections, as its comment recommends it, brings a new
// connection long before HTTP/2 notices after 45 s that the old one is dead.
// (CloseIdleConnections does not: the stream of the call that has ended is still
// being taken down when it looks, and those of other calls hold the connection.)
func TestConnectionVanishes(t *testing.T) {
	stub := leasestub.Start(t, 0)
	config := rest.CopyConfig(stub.Config())
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, target.Host)
	config.Host = "https://" + p.Addr().String()
	dialer := connrotation.NewDialer((&net.Dialer{}).DialContext)
	config.Dial = dialer.DialContext
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	renewed := make(chan struct{}, 1000)
	c, err := New(Config{Process: "host",
		Client:           clientset.CoordinationV1(),
		NodeName:         nodeName,
		Owner:            ownerOf,
		Duration:         2 * time.Second,
		CallTimeout:      500 * time.Millisecond,
		ResetConnections: dialer.CloseAll,
		Hooks:            Hooks{Renewed: func(Renewed) { renewed <- struct{}{} }},
		ErrorHandler:     func(context.Context, error, string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- c.Run(ctx) }()
	await := func(what string) {
		t.Helper()
		for range cap(renewed) { // earlier renewals do not count
			select {
			case <-renewed:
				continue
			default:
			}
			break
		}
		select {
		case <-renewed:
		case <-time.After(20 * time.Second):
			t.Fatalf("no renewal within 20 s %s", what)
		}
	}
	await("at the start")
	p.vanish()
	await("after the connection has died")
	p.mu.Lock()
	accepts := p.accepts
	p.mu.Unlock()
	if accepts != 2 {
		t.Errorf("%d connections were made, want 2: the first and its successor", accepts)
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	dialer.CloseAll()
}

// A call that was answered, and then ran into its deadline while client-go slept for
// the Retry-After of the answer, says that the connection works. The error is the
// same as that of a call that was never answered.
func TestAThrottledCallIsNoSignOfADeadConnection(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	resets := 0
	r := resetter{reset: func() { resets++ }}
	call := func(answered bool) {
		ctx, ended := r.begin(t.Context())
		if answered {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := server.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		ended(&url.Error{Op: "Put", URL: server.URL, Err: context.DeadlineExceeded})
	}
	for range 10 {
		call(true)
	}
	if resets != 0 {
		t.Errorf("%d resets of a connection that answers", resets)
	}
	call(false)
	call(true)
	call(false)
	if resets != 0 {
		t.Error("a reset after one call without an answer")
	}
	call(false)
	if resets != 1 {
		t.Errorf("%d resets after two calls without an answer, want 1", resets)
	}
}
