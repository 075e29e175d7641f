// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// turnstile lets one request at a time through, in a sorted order, and only when all
// other goroutines of the bubble are blocked. So the order of requests does not depend
// on the order in which goroutines run, and no two requests have the same time.
type turnstile struct {
	free bool // requests are not ordered

	mu     sync.Mutex
	queue  []ticket // sorted by key, and of one key by age
	ended  bool
	arrive chan struct{} // has a token if queue may not be empty
}

type ticket struct {
	key string
	ok  chan struct{} // closed when the request may go on
}

// steps counts the steps of all runs of the process. A run in which it stands still
// for long is stuck.
var steps atomic.Int64

func newTurnstile(free bool) *turnstile {
	return &turnstile{free: free, arrive: make(chan struct{}, 1)}
}

// pass blocks until it is the turn of key, or ctx is done.
func (s *turnstile) pass(ctx context.Context, key string) {
	s.mu.Lock()
	if s.free || s.ended {
		s.mu.Unlock()
		return
	}
	mine := ticket{key, make(chan struct{})}
	at, _ := slices.BinarySearchFunc(s.queue, key+"\x00", func(t ticket, key string) int { return cmp.Compare(t.key, key) })
	s.queue = slices.Insert(s.queue, at, mine)
	s.mu.Unlock()
	select {
	case s.arrive <- struct{}{}:
	default:
	}
	select {
	case <-mine.ok:
	case <-ctx.Done():
		// The ticket stays in the queue and is closed in its turn.
	}
}

// run serves the queue until ctx is done. From then on everything passes.
func (s *turnstile) run(ctx context.Context) {
	for {
		select {
		case <-s.arrive:
		case <-ctx.Done():
		}
		for s.next() {
		}
		if ctx.Err() != nil {
			s.mu.Lock()
			s.ended = true
			for _, t := range s.queue {
				close(t.ok)
			}
			s.queue = nil
			s.mu.Unlock()
			return
		}
	}
}

// next lets one request through and reports whether there was one.
func (s *turnstile) next() bool {
	time.Sleep(time.Nanosecond) // time moves only if everything else is blocked
	steps.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return false
	}
	close(s.queue[0].ok)
	s.queue = slices.Delete(s.queue, 0, 1)
	return true
}
