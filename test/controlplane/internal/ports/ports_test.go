// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
)

// sharing is how the servers listen.
var sharing = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	if e := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1) }); e != nil {
		return e
	}
	return err
}}

func TestReservation(t *testing.T) {
	r, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	addr := fmt.Sprintf("127.0.0.1:%d", r.Port)

	refused := func(when string) {
		t.Helper()
		if conn, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want the connection refused", when, err)
			if err == nil {
				conn.Close()
			}
		}
	}
	refused("before the server listens")
	if l, err := net.Listen("tcp", addr); err == nil {
		l.Close()
		t.Error("somebody else could take the port")
	}
	// Twice: a server is restarted on its port. Every connection must reach the server, none the reservation.
	for range 2 {
		l, err := sharing.Listen(context.Background(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			accepted.Close()
			conn.Close()
		}
		l.Close()
		refused("after the server's end")
	}
}

// TestReservedPortsAreNotGivenAway asks for as many free ports as a busy machine would.
func TestReservedPortsAreNotGivenAway(t *testing.T) {
	reserved := map[int]bool{}
	for range 200 {
		r, err := Reserve()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		if reserved[r.Port] {
			t.Fatalf("port %d was given twice", r.Port)
		}
		reserved[r.Port] = true
	}
	for range 500 {
		l, err := sharing.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if port := l.Addr().(*net.TCPAddr).Port; reserved[port] {
			t.Fatalf("the reserved port %d was given to somebody who asked for any", port)
		}
	}
}
