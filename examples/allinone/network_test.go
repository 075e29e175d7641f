// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// network is the network of one replica.
type network struct {
	mu      sync.Mutex
	down    chan struct{} // closed while it is cut
	waiting *letter       // holds back one request
}

// letter is a request that is held back.
type letter struct {
	method  string
	prefix  string // of the path
	arrived chan struct{}
	open    chan struct{}
	answer  chan int
}

// to returns server as seen from inside the network.
func (n *network) to(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		down, held := n.down, n.waiting
		if held != nil && held.method == r.Method && strings.HasPrefix(r.URL.Path, held.prefix) {
			n.waiting = nil
		} else {
			held = nil
		}
		n.mu.Unlock()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		switch {
		case held != nil:
			held.carry(server, r)
		case isClosed(down):
			// Behave as if packets were dropped. The server notices the end of
			// a connection only if it has read the body.
			_, _ = io.Copy(io.Discard, r.Body)
			<-ctx.Done()
		default:
			go func() {
				select {
				case <-down:
					cancel()
				case <-ctx.Done():
				}
			}()
			server.ServeHTTP(w, r.WithContext(ctx))
			if !isClosed(down) {
				return
			}
		}
		panic(http.ErrAbortHandler)
	})
}

// carry delivers the request when the letter is released, even if its sender is
// gone.
func (l *letter) carry(server http.Handler, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Body = io.NopCloser(bytes.NewReader(content))
	close(l.arrived)
	<-l.open
	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, r)
	l.answer <- answer.Code
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// cut drops all requests that are in transit, and all later ones.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.down)
}

// heal undoes cut. Requests sent in the meantime are lost.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = make(chan struct{})
}

// hold holds back the next request with a method and a prefix of its path until
// it is released.
func (n *network) hold(method, prefix string) *letter {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting = &letter{method: method, prefix: prefix, arrived: make(chan struct{}), open: make(chan struct{}), answer: make(chan int, 1)}
	return n.waiting
}

func (l *letter) await(t *testing.T) {
	t.Helper()
	select {
	case <-l.arrived:
	case <-time.After(time.Minute):
		t.Fatal("the request was not sent")
	}
}

// release delivers the request and returns the status of the answer.
func (l *letter) release() int {
	close(l.open)
	return <-l.answer
}
