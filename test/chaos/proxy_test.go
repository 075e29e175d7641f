// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// echoes starts a server that sends back its input.
func echoes(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// asks sends a byte and checks that it comes back within the given time; 0
// means no limit.
func asks(c net.Conn, within time.Duration) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	return hears(c, within)
}

func hears(c net.Conn, within time.Duration) error {
	var deadline time.Time
	if within > 0 {
		deadline = time.Now().Add(within)
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func timedOut(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// refused connects and returns the error. A reset may arrive before the
// connection is established.
func refused(p *proxy) error {
	c, err := net.Dial("tcp", p.address())
	if err != nil {
		return err
	}
	return errors.Join(hears(c, 0), c.Close())
}

const silence = 50 * time.Millisecond

func TestProxy(t *testing.T) {
	p, err := newProxy(echoes(t))
	if err != nil {
		t.Fatal(err)
	}
	a := dial(t, p)
	if err := asks(a, 0); err != nil {
		t.Fatal(err)
	}

	p.hold()
	b := dial(t, p)
	if err := asks(a, silence); !timedOut(err) {
		t.Errorf("while nothing gets through: %v", err)
	}
	if err := asks(b, silence); !timedOut(err) {
		t.Errorf("while nothing gets through a new connection gets %v", err)
	}
	p.letGo()
	if err := errors.Join(hears(a, 0), hears(b, 0)); err != nil {
		t.Errorf("held bytes were not delivered: %v", err)
	}

	p.deaden()
	if err := asks(a, silence); !timedOut(err) {
		t.Errorf("on a dead connection: %v", err)
	}
	c := dial(t, p)
	if err := asks(c, 0); err != nil {
		t.Errorf("next to a dead connection: %v", err)
	}

	p.drop()
	for _, conn := range []net.Conn{a, b, c} {
		if err := hears(conn, 0); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection that was reset: %v", err)
		}
	}
	p.setRefuse(true)
	if err := refused(p); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that was refused: %v", err)
	}
	p.setRefuse(false)
	if err := asks(dial(t, p), 0); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}

func TestProxyWithoutAServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProxy(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	if err := refused(p); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}
