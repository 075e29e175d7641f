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

// hasEnded reports whether the other end of a TCP connection has closed it, or leaves
// bytes unacknowledged although they were sent that often again. Neither reading nor
// peeking shows the first behind unread bytes, and keepalive does not look for the second.
// The state of the connection shows both. It is the first byte of struct tcp_info. The
// third and the fourth are the retransmissions and the probes of a closed window
// since the last answer.
func hasEnded(conn syscall.RawConn, unanswered uint8) (ended, known bool) {
	var first [4]byte
	err := conn.Control(func(fd uintptr) {
		info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
		binary.NativeEndian.PutUint32(first[:], uint32(info))
		known = err == nil
	})
	known = known && err == nil
	return known && (first[0] != tcpEstablished || max(first[2], first[3]) >= unanswered), known
}
