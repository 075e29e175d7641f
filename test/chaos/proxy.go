// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"net"
	"sync"
)

// A proxy is the network between the kubelet and the API server, and injects
// network faults.
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
	dead           bool // received bytes are discarded; guarded by proxy.mu
}

// newProxy returns a proxy that listens on its own port.
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

// address returns the proxy's address for clients.
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
	if err != nil { // the target refuses connections, so the proxy does too
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

// pump copies bytes in one direction. If either end fails, it closes both,
// because TLS does not support half-closed connections.
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

// reset closes a connection so that the other end notices at once.
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

// setRefuse sets whether new connections are reset.
func (p *proxy) setRefuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// hold holds back all bytes until letGo delivers them.
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

// deaden makes the open connections lose all their bytes from now on. Neither
// end notices, as when a middlebox has dropped its state.
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
