// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"container/heap"
	"time"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
)

// The queues in which pods wait for a free place.
const (
	queueAdmit = iota
	queueStart // Start, Update and Inspect
	queueStop  // Stop and Release, which a flood of hanging starts must not block
	queueUrgent
	queueWrite
	queueCount
)

// The lanes in which calls run.
const (
	laneAdmit = iota
	laneStart
	laneStop
	laneAPI
	laneCount
)

// queueOf returns the queue of a call of the provider.
func queueOf(op Op) int {
	switch op {
	case OpAdmit:
		return queueAdmit
	case OpStop, OpRelease:
		return queueStop
	}
	return queueStart
}

func laneOf(queue int) int { return min(queue, laneAPI) }

// A fifo is a queue of pods.
type fifo struct {
	items []*track
	head  int
}

func (q *fifo) len() int { return len(q.items) - q.head }

func (q *fifo) push(t *track) {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		// Rather than grow, make room: a queue may never be empty for months.
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, t)
}

func (q *fifo) pop() *track {
	t := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return t
}

// A breaker keeps a failing API server from being called by every pod at once.
// As long as requests fail one after the other because of the server, there is
// one at a time, after a backoff of its own; the first success opens it. What
// is wrong with one object does not count.
type breaker struct {
	trip   int // failures in a row that close it
	policy backoff.Policy

	failures int
	until    instant
}

// allows reports whether another request may start while so many run, and when
// to ask again.
func (b *breaker) allows(now instant, running int) (ok bool, wake instant) {
	if b.failures < b.trip {
		return true, never
	}
	if running > 0 {
		return false, never
	}
	return now >= b.until, b.until
}

// done takes the result of a request. It reports whether the server is back.
func (b *breaker) done(now instant, err error) (back bool) {
	switch apierr.Classify(err) {
	case apierr.Timeout, apierr.Unreachable, apierr.Server, apierr.Throttled, apierr.Unauthorized, apierr.Other:
		b.failures++
		if n := b.failures - b.trip; n >= 0 {
			b.until = now + b.policy.Delay(n+1)
		}
		return false
	case apierr.Canceled:
		return false
	}
	back = b.failures >= b.trip
	b.failures = 0
	return back
}

// breakerCap is the longest time between two requests of a closed breaker. It
// bounds how long the end of an outage goes unnoticed.
const breakerCap = 30 * time.Second

// wakes is a heap of pods by when they are to be looked at.
type wakes []*track

func (w wakes) Len() int           { return len(w) }
func (w wakes) Less(i, j int) bool { return w[i].wakeAt < w[j].wakeAt }
func (w wakes) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].wakeIndex, w[j].wakeIndex = int32(i+1), int32(j+1)
}

// Push implements heap.Interface.
func (w *wakes) Push(x any) {
	t := x.(*track)
	*w = append(*w, t)
	t.wakeIndex = int32(len(*w))
}

// Pop implements heap.Interface.
func (w *wakes) Pop() any {
	old := *w
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	t.wakeIndex = 0
	return t
}

// set makes t wake at the instant, and no other.
func (w *wakes) set(t *track, at instant) {
	switch {
	case t.wakeIndex == 0 && at == never:
	case t.wakeIndex == 0:
		t.wakeAt = at
		heap.Push(w, t)
	case at == never:
		heap.Remove(w, int(t.wakeIndex-1))
	case t.wakeAt != at:
		t.wakeAt = at
		heap.Fix(w, int(t.wakeIndex-1))
	}
}
