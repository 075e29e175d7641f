// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// maxStrangers is the number of connections that have not sent a request with a
// permission. One of HTTP/2 takes some 30 KiB.
const maxStrangers = 256

// conns are the open connections of Run, except for those that were taken over. A
// connection is a stranger until it has sent a request that was allowed. If there are too
// many strangers, the address with most of them loses its oldest one: an address that
// floods the node keeps no other address out.
//
// Invariants: len(strangers) <= maxStrangers, len(known) <= most.
type conns struct {
	most int // that are known; more stay strangers

	mu        sync.Mutex
	strangers []stranger // in the order in which they came
	known     map[net.Conn]struct{}
}

type stranger struct {
	conn net.Conn
	from string
}

func newConns(most int) *conns { return &conns{most: most, known: make(map[net.Conn]struct{})} }

// state follows the state of a connection, for http.Server.ConnState.
func (c *conns) state(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if late := c.add(stranger{conn, originAddress(conn.RemoteAddr().String())}); late != nil {
			_ = beneath(late).Close() // TLS would wait for the client
		}
	case http.StateHijacked, http.StateClosed:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.remove(conn)
		delete(c.known, conn)
	case http.StateActive, http.StateIdle:
	}
}

// add adds a stranger. It returns the connection that must be closed for it, or nil.
func (c *conns) add(one stranger) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.strangers = append(c.strangers, one)
	if len(c.strangers) <= maxStrangers {
		return nil
	}
	count, most := make(map[string]int), 0
	for _, s := range c.strangers {
		count[s.from]++
		most = max(most, count[s.from])
	}
	i := slices.IndexFunc(c.strangers, func(s stranger) bool { return count[s.from] == most })
	late := c.strangers[i].conn
	c.strangers = slices.Delete(c.strangers, i, i+1)
	return late
}

// remove removes a stranger and reports whether conn was one. c.mu must be held.
func (c *conns) remove(conn net.Conn) bool {
	i := slices.IndexFunc(c.strangers, func(s stranger) bool { return s.conn == conn })
	if i >= 0 {
		c.strangers = slices.Delete(c.strangers, i, i+1)
	}
	return i >= 0
}

// know records that conn has sent a request that was allowed.
func (c *conns) know(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[conn]; !ok && len(c.known) < c.most && c.remove(conn) {
		c.known[conn] = struct{}{}
	}
}
