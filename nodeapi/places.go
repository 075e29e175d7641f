// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// places are the reviews that may be open at a time. Anyone who reaches the node can
// cause one, so the addresses that ask take turns: a caller does not wait for the
// questions of another address, but for one of each.
//
// Invariants: len(taken) is the number of addresses with a place, and each has at most
// half of all places. The addresses of turns are those of waiting, each once.
type places struct {
	mu      sync.Mutex
	free    int
	most    int // of one address
	taken   map[string]int
	waiting map[string][]chan struct{} // closed when the caller has a place
	turns   []string
}

func newPlaces(n int) *places {
	return &places{free: n, most: max(n/2, 1), taken: make(map[string]int), waiting: make(map[string][]chan struct{})}
}

// take waits for a place. It returns the cause of ctx if that ends first.
func (p *places) take(ctx context.Context, from string) error {
	turn := make(chan struct{})
	p.mu.Lock()
	if len(p.waiting[from]) == 0 {
		p.turns = append(p.turns, from)
	}
	p.waiting[from] = append(p.waiting[from], turn)
	p.give()
	p.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-turn: // both
		p.back(from)
	default:
		i := slices.Index(p.waiting[from], turn)
		p.waiting[from] = slices.Delete(p.waiting[from], i, i+1)
		if len(p.waiting[from]) == 0 {
			delete(p.waiting, from)
			i := slices.Index(p.turns, from)
			p.turns = slices.Delete(p.turns, i, i+1)
		}
	}
	return context.Cause(ctx)
}

// leave gives back a place.
func (p *places) leave(from string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.back(from)
}

// back gives back a place. p.mu must be held.
func (p *places) back(from string) {
	p.free++
	if p.taken[from]--; p.taken[from] == 0 {
		delete(p.taken, from)
	}
	p.give()
}

// give gives the free places to those whose turn it is. p.mu must be held.
func (p *places) give() {
	for p.free > 0 {
		i := slices.IndexFunc(p.turns, func(from string) bool { return p.taken[from] < p.most })
		if i < 0 {
			return
		}
		from := p.turns[i]
		p.turns = slices.Delete(p.turns, i, i+1)
		queue := p.waiting[from]
		close(queue[0])
		if p.waiting[from] = queue[1:]; len(queue) > 1 {
			p.turns = append(p.turns, from)
		} else {
			delete(p.waiting, from)
		}
		p.free--
		p.taken[from]++
	}
}

// originKey is the key of the address of a client in the context of its request.
type originKey struct{}

// withOrigin returns a context with the address of a client, host:port.
func withOrigin(ctx context.Context, remote string) context.Context {
	return context.WithValue(ctx, originKey{}, originAddress(remote))
}

// originAddress returns the address of host:port, and of IPv6 the network, because a
// machine has all of its addresses.
func originAddress(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if address = address.Unmap().WithZone(""); address.Is6() {
		network, _ := address.Prefix(64)
		return network.Addr().String()
	}
	return address.String()
}

// originOf returns the address of the client.
func originOf(ctx context.Context) string {
	from, _ := ctx.Value(originKey{}).(string)
	return from
}
