// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"encoding/binary"
	"syscall"
)

// tcpEstablished is the state of a connection that neither end has closed, from
// Linux's include/net/tcp_states.h.
const tcpEstablished = 1

// hasClosed reports whether the other end of a TCP connection has closed it. Neither
// reading nor peeking shows that behind unread bytes, but the state of the connection
// does. It is the first byte of struct tcp_info.
func hasClosed(conn syscall.RawConn) (closed, known bool) {
	var first [4]byte
	err := conn.Control(func(fd uintptr) {
		info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
		binary.NativeEndian.PutUint32(first[:], uint32(info))
		known = err == nil
	})
	known = known && err == nil
	return known && first[0] != tcpEstablished, known
}
