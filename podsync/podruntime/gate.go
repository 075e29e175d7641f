// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A gate lets a number of callers through at once: pods that have a sandbox first, so
// that one runs before the next is begun, and among those the oldest one.
type gate struct {
	mu      sync.Mutex
	free    int
	waiting []*ticket // the next one first
}

type ticket struct {
	created time.Time // the pod
	begun   bool      // the pod has a sandbox
	ready   chan struct{}
}

// before reports whether a ticket goes before another one that is waiting.
func (t *ticket) before(other *ticket) bool {
	if t.begun != other.begun {
		return t.begun
	}
	return t.created.Before(other.created)
}

// enter waits for a place, until ctx ends.
func (g *gate) enter(ctx context.Context, t ticket) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	t.ready = make(chan struct{})
	at := slices.IndexFunc(g.waiting, t.before)
	if at < 0 {
		at = len(g.waiting)
	}
	g.waiting = slices.Insert(g.waiting, at, &t)
	g.mu.Unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.waiting, &t); at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	} else {
		g.pass() // the place came at the same time
	}
	return ctx.Err()
}

// leave gives a place back.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass()
}

// pass hands a place on. g.mu must be held.
func (g *gate) pass() {
	if len(g.waiting) == 0 {
		g.free++
		return
	}
	close(g.waiting[0].ready)
	g.waiting = slices.Delete(g.waiting, 0, 1)
}

// sleep waits, and reports whether ctx has not ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
