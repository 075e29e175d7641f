// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"net"
	"sync"
)

// A proxy is the network between the kubelet and the API server, as far as it can be
// broken.
type proxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu      sync.Mutex
	links   map[*link]bool
	refuse  bool
	held    bool
	release chan struct{} // closed when held ends
	dials   int
	resets  int
}

// A link is a connection through the proxy.
type link struct {
	client, server *net.TCPConn
	dead           bool // what comes is thrown away; guarded by proxy.mu
}

// newProxy listens on a port of its own.
func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target, links: map[*link]bool{}, release: make(chan struct{})}
	close(p.release)
	p.wg.Go(p.accept)
	return p, nil
}

// address is where clients find the proxy.
func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.wg.Go(func() { p.serve(c.(*net.TCPConn)) })
	}
}

func (p *proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	p.dials++
	refuse := p.refuse
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil { // nobody listens there: nor here
		reset(client)
		return
	}
	l := &link{client: client, server: server.(*net.TCPConn)}
	p.mu.Lock()
	p.links[l] = true
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(l, l.server, l.client) })
	both.Go(func() { p.pump(l, l.client, l.server) })
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pump carries bytes in one direction. If either end fails, both are closed:
// half-closed connections are nothing that TLS knows.
func (p *proxy) pump(l *link, to, from *net.TCPConn) {
	defer reset(l.client)
	defer reset(l.server)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p.mu.Lock()
			release := p.release
			p.mu.Unlock()
			<-release
			p.mu.Lock()
			dead := l.dead
			p.mu.Unlock()
			if !dead {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}

// reset closes a connection so that the other end is told at once.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// drop resets all connections.
func (p *proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		reset(l.client)
		reset(l.server)
		p.resets++
	}
}

// setRefuse has new connections reset, or not any more.
func (p *proxy) setRefuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// hold keeps back all bytes; letGo delivers them, late.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.held {
		p.held, p.release = true, make(chan struct{})
	}
}

func (p *proxy) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held {
		p.held = false
		close(p.release)
	}
}

// deaden has the connections that are open now lose all that they carry, for good.
// Neither end is told, as when a middlebox has forgotten them.
func (p *proxy) deaden() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.dead = true
	}
}

// close ends the proxy and all connections.
func (p *proxy) close() error {
	err := p.listener.Close()
	p.letGo()
	p.drop()
	p.wg.Wait()
	return err
}
