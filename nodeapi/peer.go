// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"net"
	"syscall"
	"time"
)

// peerCheck is the time between two looks at the clients of the open streams. A
// client that is gone is noticed within a minute: a ping that shows it to a proxy takes
// two of them, and the look a third.
const peerCheck = 15 * time.Second

// keepAlive lets the system end the connection of a machine that does not answer.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3}

// unanswered is the number of times that the system has sent the same bytes again without
// an answer when a client is given up. Linux waits 200 ms or more before the first time
// and twice as long before each next one: some 51 s in all, as long as keepalive waits.
const unanswered = 8

// A peer is the client's end of a connection. Its bytes may wait unread, and then no
// read shows that the client has closed the connection.
type peer struct{ conn syscall.RawConn }

// peerOf returns the peer of a connection, below TLS. It returns nil if the connection
// has no socket, or hides it.
func peerOf(conn net.Conn) *peer {
	conn = beneath(conn)
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive)
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	return &peer{raw}
}

// beneath returns the connection below TLS.
func beneath(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}

// gone reports whether the client has closed the connection, or has not answered that
// often. If the system does not tell, known is false.
func (p *peer) gone(unanswered uint8) (gone, known bool) {
	if p == nil {
		return false, false
	}
	return hasEnded(p.conn, unanswered)
}

// connKey is the key of the connection in the context of a request that Run serves.
type connKey struct{}

func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// connOf returns the connection of a request that Run serves, or nil.
func connOf(ctx context.Context) net.Conn {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	return conn
}
