// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package queue has what the loop of package podsync waits with: queues of pods for a free
// place, a heap of pods by the time at which they are due, and a breaker for an API server
// that fails. Nothing in it is safe for concurrent use.
package queue

import (
	"container/heap"
	"time"

	"github.com/kubewright/kubewright/internal/backoff"
)

// never is later than every time.
const never time.Duration = 1<<63 - 1

// A Fifo is a queue. Its zero value is empty.
type Fifo[T any] struct {
	items []T
	head  int
}

// Len returns the number of items.
func (q *Fifo[T]) Len() int { return len(q.items) - q.head }

// Items returns the items, the first one first.
func (q *Fifo[T]) Items() []T { return q.items[q.head:] }

// Push adds an item at the end.
func (q *Fifo[T]) Push(item T) {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		// Make room instead of growing: a queue may not be empty for months.
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, item)
}

// Pop removes the first item. The queue must not be empty.
func (q *Fifo[T]) Pop() T {
	item := q.items[q.head]
	var zero T
	q.items[q.head] = zero
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return item
}

// A Slot is the place of an item in a Heap.
type Slot struct {
	at    time.Duration
	index int32 // place in the heap plus one; 0: not in the heap
}

// A Slotted is an item of a Heap.
type Slotted interface {
	// Slot returns the item's place, always the same one.
	Slot() *Slot
}

// A Heap has items by the time at which they are due. Its zero value is empty.
type Heap[T Slotted] struct{ items slots[T] }

// Len returns the number of items.
func (h *Heap[T]) Len() int { return len(h.items) }

// Next returns the time at which the first item is due, or the largest duration if the
// heap is empty.
func (h *Heap[T]) Next() time.Duration {
	if len(h.items) == 0 {
		return never
	}
	return h.items[0].Slot().at
}

// Pop removes the first item. The heap must not be empty.
func (h *Heap[T]) Pop() T { return heap.Pop(&h.items).(T) }

// Set replaces the time at which the item is due. The largest duration removes it.
func (h *Heap[T]) Set(item T, at time.Duration) {
	s := item.Slot()
	switch {
	case s.index == 0 && at == never:
	case s.index == 0:
		s.at = at
		heap.Push(&h.items, item)
	case at == never:
		heap.Remove(&h.items, int(s.index-1))
	case s.at != at:
		s.at = at
		heap.Fix(&h.items, int(s.index-1))
	}
}

// slots implements heap.Interface.
type slots[T Slotted] []T

func (s slots[T]) Len() int           { return len(s) }
func (s slots[T]) Less(i, j int) bool { return s[i].Slot().at < s[j].Slot().at }
func (s slots[T]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].Slot().index, s[j].Slot().index = int32(i+1), int32(j+1)
}

// Push implements heap.Interface.
func (s *slots[T]) Push(x any) {
	item := x.(T)
	*s = append(*s, item)
	item.Slot().index = int32(len(*s))
}

// Pop implements heap.Interface.
func (s *slots[T]) Pop() any {
	old := *s
	item := old[len(old)-1]
	var zero T
	old[len(old)-1] = zero
	*s = old[:len(old)-1]
	item.Slot().index = 0
	return item
}

// A Breaker keeps a failing API server from being called by every pod at once.
// While requests fail one after the other because of the server, the breaker is
// tripped: there is one request at a time, after a backoff of its own. The first
// success resets it. Failures that may concern one object must not be told to it.
type Breaker struct {
	Trip   int            // failures in a row that trip the breaker
	Policy backoff.Policy // of the requests while it is tripped

	failures int
	until    time.Duration
}

// Allows reports whether another request may start while running requests are in
// flight, and when to ask again.
func (b *Breaker) Allows(now time.Duration, running int) (ok bool, again time.Duration) {
	if b.failures < b.Trip {
		return true, never
	}
	if running > 0 {
		return false, never
	}
	return now >= b.until, b.until
}

// Failed records a failure of the server.
func (b *Breaker) Failed(now time.Duration) {
	b.failures++
	if n := b.failures - b.Trip; n >= 0 {
		b.until = now + b.Policy.Delay(n+1)
	}
}

// Succeeded records a success. It reports whether the server is back.
func (b *Breaker) Succeeded() (back bool) {
	back = b.failures >= b.Trip
	b.failures = 0
	return back
}
