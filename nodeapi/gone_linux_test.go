// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"
)

// vanish makes the system ignore whatever comes for a connection: to its other end, the
// machine is gone without a word. No packet is acknowledged any longer.
func vanish(t testing.TB, conn net.Conn) {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = syscall.AttachLsf(int(fd), []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}}) // 0 bytes of each packet
	})
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}

// TestAMachineThatVanishesIsNoticed also while output for it is in flight: the system
// sends no keepalive then, and repeats the output for a quarter of an hour. With the times
// of a node, it takes a minute.
func TestAMachineThatVanishesIsNoticed(t *testing.T) {
	for name, quick := range map[string]bool{"quickly": true, "with the times of a node": false} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && !quick {
				t.Skip("the system repeats bytes eight times within 51 s")
			}
			started, vanished := make(chan struct{}), make(chan struct{})
			ended := map[string]chan error{}
			call := func(ctx context.Context, name string, out io.Writer, unread bool) error {
				started <- struct{}{}
				if unread {
					_, _ = io.Copy(out, &pattern{})
				} else {
					<-vanished
					fmt.Fprintln(out, "in flight")
				}
				<-ctx.Done()
				ended[name] <- context.Cause(ctx)
				return ctx.Err()
			}
			b := &testBackend{
				exec: func(ctx context.Context, _ Container, command []string, s Streams) error {
					if command[0] == "idle" {
						s.Stdout = io.Discard
					}
					return call(ctx, command[0], s.Stdout, command[0] == "unread" || command[0] == "alive")
				},
				forward: func(ctx context.Context, _ Pod, _ uint16, stream io.ReadWriteCloser) error {
					return call(ctx, "forward", stream, false)
				},
				logs: func(ctx context.Context, _ Container, _ LogOptions) (io.ReadCloser, error) {
					out, in := io.Pipe()
					go func() { _ = call(ctx, "log", in, false) }()
					return out, nil
				},
			}
			r := start(t, b, nil)
			r.streams.unanswered, r.streams.check = 3, 100*time.Millisecond
			if !quick {
				r.streams.unanswered, r.streams.check = unanswered, peerCheck
			}
			exec := func(command string) func() net.Conn {
				return func() net.Conn {
					c := r.rawSPDY("/exec/default/web/main?output=1&command="+command, "v4.channel.k8s.io")
					_, _ = c.open("streamType", "error")
					_, _ = c.open("streamType", "stdout")
					return c.NetConn()
				}
			}
			clients := map[string]func() net.Conn{
				"exec": exec("exec"), "unread": exec("unread"), "alive": exec("alive"),
				"log": func() net.Conn {
					conn := r.ask("/containerLogs/default/web/main?follow=true")
					return beneath(conn)
				},
				"forward": func() net.Conn {
					c := r.rawSPDY(forwardPath, "portforward.k8s.io")
					_, _ = c.open("streamType", "error", "port", "80", "requestID", "1")
					_, _ = c.open("streamType", "data", "port", "80", "requestID", "1")
					return c.NetConn()
				},
			}
			if !quick {
				clients["idle"] = exec("idle") // keepalive ends it
			}
			for name := range clients {
				ended[name] = make(chan error, 1)
			}
			var alive net.Conn
			waiting := 0
			for name, connect := range clients {
				conn := connect()
				await(t, "the call of "+name, started)
				defer func() { _ = conn.Close() }()
				if name == "unread" || name == "alive" {
					waiting++
					awaitStacks(t, "the output to wait", func(s []byte) bool { return bytes.Count(s, []byte("(*pollDesc).waitWrite(")) == waiting })
				}
				if name == "alive" { // its window is closed, but its system answers
					alive = conn
					continue
				}
				vanish(t, conn)
			}
			close(vanished)
			began := time.Now()
			for _, name := range slices.Sorted(maps.Keys(clients)) {
				if name == "alive" {
					continue
				}
				select {
				case err := <-ended[name]:
					t.Logf("%s: %v after %v", name, err, time.Since(began))
				case <-time.After(90*time.Second - time.Since(began)):
					t.Errorf("%s goes on", name)
				}
			}
			if n := len(ended["alive"]); n != 0 {
				t.Error("a client that reads its output late was ended")
			}
			_ = alive.Close()
			await(t, "the end of the last one", ended["alive"])
		})
	}
}
