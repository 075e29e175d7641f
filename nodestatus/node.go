// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// node is a node that is managed. Package status decides about it; a node guards the
// decisions with its lock.
type node struct {
	name  string
	clock *clock

	mu      sync.Mutex // guards what follows
	state   status.State
	ctx     context.Context // of functions: ends with Run, and when the node is removed; nil while none is under way
	cancel  context.CancelFunc
	ended   bool     // the node was removed
	sleeps  uint32   // of the process, before the last round
	waiters []waiter // calls of Flush

	gate    callback.Line[struct{}]
	leftOut uint64                    // hash of the parts that were left out last; of rounds, of which there is one at a time
	members [activities]apierr.Member // of the groups of the reporter, which guard them
}

// waiter is a call of Flush, which waits for a round after the given one.
type waiter struct {
	after uint32
	done  chan struct{}
}

// A clock is what the nodes of a controller share.
type clock struct {
	epoch time.Time                  // what durations count from
	bug   func(error)                // told of an impossible event
	check func(*status.State, error) // for tests: called after each event; nil otherwise
}

// now returns the monotonic time since the epoch.
func (c *clock) now() time.Duration { return time.Since(c.epoch) }

// at turns a time of a node into one of the wall clock; 0 is never.
func (c *clock) at(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return c.epoch.Add(d)
}

// apply tells the node's state about an event.
func (n *node) apply(ev status.Event) status.News {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.applyLocked(ev)
}

func (n *node) applyLocked(ev status.Event) status.News {
	news, err := n.state.Apply(n.clock.now(), ev)
	if err != nil {
		n.clock.bug(err)
	}
	if n.clock.check != nil {
		n.clock.check(&n.state, err)
	}
	for len(n.waiters) > 0 && n.state.Agreed() > n.waiters[0].after {
		close(n.waiters[0].done)
		n.waiters = n.waiters[1:]
	}
	return news
}

// read calls f with the node's state, which f must not keep.
func (n *node) read(f func(s *status.State)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.state)
}

// next returns the request that follows, which counts as sent from now on.
func (n *node) next() (r request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.do, r.cause = n.state.Next(n.clock.now())
	switch r.do {
	case status.Nothing:
		return r
	case status.Create:
		r.create = n.state.Creation(metav1.Now())
	case status.Patch:
		r.patch = n.state.StatusPatch(metav1.Now())
	case status.Taint:
		r.patch = n.state.TaintPatch()
	}
	n.applyLocked(status.Sent{Do: r.do, Cause: r.cause})
	return r
}

// end ends the context of the node's functions, and the calls of Flush.
func (n *node) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	if n.ctx != nil {
		n.cancel()
	}
}

// beginRound begins a round and returns the context of its functions, which ends with
// parent. The context is nil if the node is left alone. The process has slept so often.
func (n *node) beginRound(parent context.Context, sleeps uint32) (context.Context, status.News) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.Resting() {
		return nil, status.News{}
	}
	if n.ctx == nil {
		n.ctx, n.cancel = context.WithCancel(parent)
	}
	if n.ended {
		n.cancel()
	}
	slept := n.sleeps != sleeps
	n.sleeps = sleeps
	return n.ctx, n.applyLocked(status.RoundBegan{Slept: slept})
}

// endRound ends a round, and returns what follows.
func (n *node) endRound() status.Outlook {
	next := n.outlook()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !next.Busy { // a quiet node keeps no context
		n.cancel()
		n.ctx, n.cancel = nil, nil
	}
	return next
}

// outlook returns what follows.
func (n *node) outlook() status.Outlook {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.Outlook(n.clock.now())
}

// flushed returns a channel that is closed when the API server has the status of a round
// that begins after now.
func (n *node) flushed() chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	done := make(chan struct{})
	n.waiters = append(n.waiters, waiter{after: n.state.Rounds(), done: done})
	return done
}

// abandon forgets a channel of flushed.
func (n *node) abandon(done chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiters = slices.DeleteFunc(n.waiters, func(w waiter) bool { return w.done == done })
}

// uid returns the UID of the registered Node, or nothing.
func (n *node) uid() types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.UID()
}
