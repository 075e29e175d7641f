// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// sendFrom sends a request with a token from an address.
func sendFrom(ctx context.Context, s *Server, address, token string) int {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/pods", nil)
	r.RemoteAddr = address
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code
}

// TestStrangersDoNotKeepAnHonestCallerWaiting: its new token waited for the reviews of
// all invented ones.
func TestStrangersDoNotKeepAnHonestCallerWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const review = 100 * time.Millisecond
		server := askedServer{token: func(ctx context.Context, review *authenticationv1.TokenReview) error {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			review.Status.Authenticated = review.Spec.Token == "honest"
			return ctx.Err()
		}}
		s, _ := server.server(t)
		ctx, cancel := context.WithCancel(t.Context())
		var strangers sync.WaitGroup
		for i := range 3000 { // from three addresses, all the time
			strangers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					if code := sendFrom(ctx, s, fmt.Sprintf("192.0.2.%d:%d", i%3, 1000+i), fmt.Sprint("invented-", i, "-", n)); code == 200 {
						t.Error("an invented token is accepted")
					}
				}
			})
		}
		time.Sleep(time.Second)
		began := time.Now()
		if code := sendFrom(t.Context(), s, "198.51.100.1:1000", "honest"); code != 200 {
			t.Errorf("the honest caller: %d", code)
		}
		if took := time.Since(began); took > 3*review {
			t.Errorf("the honest caller waited %v", took)
		}
		cancel()
		strangers.Wait()
	})
}

// TestReviewsThatHangDoNotKeepOtherAddressesOut: they held all places.
func TestReviewsThatHangDoNotKeepOtherAddressesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := askedServer{token: func(ctx context.Context, review *authenticationv1.TokenReview) error {
			if review.Spec.Token == "honest" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		s, _ := server.server(t)
		var strangers sync.WaitGroup
		for i := range 100 {
			strangers.Go(func() { sendFrom(t.Context(), s, "[2001:db8::"+strconv.Itoa(i)+"]:1000", strconv.Itoa(i)) })
		}
		synctest.Wait()
		if tokens, _ := server.asked(); tokens != maxReviews/2 {
			t.Errorf("one network has %d places", tokens)
		}
		began := time.Now()
		if code := sendFrom(t.Context(), s, "[2001:db8:1::1]:1000", "honest"); code != 200 || time.Since(began) > 0 {
			t.Errorf("%d after %v", code, time.Since(began))
		}
		strangers.Wait()
	})
}

// TestPlacesAreTakenInTurns and given back, also by those who no longer wait.
func TestPlacesAreTakenInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, order := newPlaces(2), make(chan string, 100)
		take := func(ctx context.Context, from string) {
			go func() {
				if p.take(ctx, from) == nil {
					order <- from
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		for _, from := range []string{"a", "a", "a", "b", "b", "c"} {
			take(t.Context(), from)
		}
		take(leaving, "d")
		leave()
		synctest.Wait()
		got := ""
		for range 6 {
			synctest.Wait()
			from := <-order
			got += from
			p.leave(from)
		}
		if got != "ababca" { // no one waits for two of another address
			t.Errorf("the order is %s", got)
		}
		if p.free != 2 || len(p.taken)+len(p.waiting)+len(p.turns) != 0 {
			t.Errorf("%+v is left", p)
		}
		if err := p.take(leaving, "e"); err != nil && !errors.Is(err, context.Canceled) || err == nil && p.free != 1 {
			t.Errorf("%v, %d are free", err, p.free)
		}
	})
}

// TestStrangersDoNotKeepConnections: any number of them stayed open.
func TestStrangersDoNotKeepConnections(t *testing.T) {
	c := newConns(2)
	var open []net.Conn
	add := func(from string) (closed int) {
		conn, _ := net.Pipe()
		open = append(open, conn)
		late := c.add(stranger{conn, from})
		for i, o := range open {
			if o == late {
				return i
			}
		}
		return -1
	}
	add("honest")
	for range maxStrangers - 1 {
		if i := add("flood"); i >= 0 {
			t.Fatalf("%d is closed early", i)
		}
	}
	for i := range 10 {
		if got := add("flood"); got != i+1 {
			t.Errorf("%d is closed, want %d", got, i+1)
		}
	}
	if got := add("another"); got != 11 || len(c.strangers) != maxStrangers {
		t.Errorf("%d is closed, %d are open", got, len(c.strangers))
	}
	for _, conn := range []net.Conn{open[0], open[12], open[13], open[0]} {
		c.know(conn)
	}
	if len(c.known) != 2 || len(c.strangers) != maxStrangers-2 {
		t.Errorf("%d are known, and %d are strangers", len(c.known), len(c.strangers))
	}
	for _, conn := range open {
		c.state(conn, http.StateClosed)
	}
	if len(c.known)+len(c.strangers) != 0 {
		t.Errorf("%d are known, and %d are strangers", len(c.known), len(c.strangers))
	}
}

// connect opens a connection of HTTP/2 without a request.
func (r *rig) connect() *tls.Conn {
	r.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conn.Close() })
	fmt.Fprint(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	return conn
}

// TestTheServerBoundsItsStrangers on HTTP/2, and keeps the callers that it knows.
func TestTheServerBoundsItsStrangers(t *testing.T) {
	r := start(t, &testBackend{}, nil)
	client := insecureClient(nil)
	defer client.CloseIdleConnections()
	if code, _ := r.do(http.MethodGet, "/pods", "none", client); code != http.StatusForbidden || len(r.conns.known) != 0 {
		t.Errorf("%d, and %d connections are known", code, len(r.conns.known))
	}
	if code, _ := r.do(http.MethodGet, "/pods", "admin", client); code != http.StatusOK {
		t.Error(code)
	}
	first := r.connect()
	for range maxStrangers {
		r.connect()
	}
	r.awaitEnd(first)
	r.conns.mu.Lock()
	strangers, known := len(r.conns.strangers), len(r.conns.known)
	r.conns.mu.Unlock()
	if strangers != maxStrangers || known != 1 {
		t.Errorf("%d strangers, and %d connections are known", strangers, known)
	}
	if code, _ := r.do(http.MethodGet, "/pods", "admin", client); code != http.StatusOK {
		t.Error(code)
	}
}

// TestAConnectionHasFewRequestsAtATime on HTTP/2: 250 of each stranger waited for the review of an
// invented token.
func TestAConnectionHasFewRequestsAtATime(t *testing.T) {
	r := start(t, &testBackend{}, nil)
	conn := r.connect()
	var head [9]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil || head[3] != 4 { // SETTINGS
		t.Fatalf("the server begins with % x, %v", head, err)
	}
	settings := make([]byte, int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(conn, settings); err != nil {
		t.Fatal(err)
	}
	const maxConcurrentStreams = 3
	for one := range slices.Chunk(settings, 6) {
		if binary.BigEndian.Uint16(one) == maxConcurrentStreams && binary.BigEndian.Uint32(one[2:]) == maxRequests {
			return
		}
	}
	t.Errorf("the settings are % x", settings)
}

// TestAnIdleConnectionEnds on HTTP/2, also if its client pings.
func TestAnIdleConnectionEnds(t *testing.T) {
	r := startWith(t, &testBackend{}, nil, func(s *Server) { s.idleTimeout = 200 * time.Millisecond })
	conn, ended := r.connect(), make(chan struct{})
	var pings sync.WaitGroup
	pings.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
				fmt.Fprint(conn, "\x00\x00\x08\x06\x00\x00\x00\x00\x00pingping")
			}
		}
	})
	r.awaitEnd(conn)
	close(ended)
	pings.Wait()
	awaitStacks(t, "the end of the connection", func([]byte) bool {
		r.conns.mu.Lock()
		defer r.conns.mu.Unlock()
		return len(r.conns.strangers) == 0
	})
}
