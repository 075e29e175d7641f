// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"container/heap"
	"time"
)

// entry is a name. All times are durations since the scheduler's epoch.
type entry[E any] struct {
	name  string
	value E
	phase phase

	due      time.Duration // when to run next; during a run, when it started
	deadline time.Duration // when it is lost if it has not run; never when forever
	ended    time.Duration // when its last run ended

	queue *queue[E] // the queue that the entry is in, or nil
	index int       // in queue.entries

	againAt time.Duration // when it is due again, if triggered during a run
	revived *E            // the value with which it was added again while leaving or removed
	cancel  func()        // ends the context of the run

	running bool
	holds   bool // a worker, while it runs
	atSlot  bool // due at its slot, not at a time that it asked for
	again   bool // triggered during a run
	leaving bool // Leave was called: its farewell comes before it is removed
	removed bool // removed, and its last run or Gone is not over
	parted  bool // Gone is being called, or about to be
}

// forever is after all times.
const forever = time.Duration(1<<63 - 1)

// queue is a heap of entries. The entry that goes first is on top.
type queue[E any] struct {
	entries []*entry[E]
	before  func(a, b *entry[E]) bool
}

func byDue[E any](a, b *entry[E]) bool      { return a.due < b.due }
func byDeadline[E any](a, b *entry[E]) bool { return a.deadline < b.deadline }

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (q *queue[E]) Len() int           { return len(q.entries) }
func (q *queue[E]) Less(i, j int) bool { return q.before(q.entries[i], q.entries[j]) }
func (q *queue[E]) Swap(i, j int) {
	q.entries[i], q.entries[j] = q.entries[j], q.entries[i]
	q.entries[i].index, q.entries[j].index = i, j
}

func (q *queue[E]) Push(x any) {
	e := x.(*entry[E])
	e.queue, e.index = q, len(q.entries)
	q.entries = append(q.entries, e)
}

func (q *queue[E]) Pop() any {
	last := len(q.entries) - 1
	e := q.entries[last]
	q.entries[last] = nil
	q.entries = q.entries[:last]
	e.queue = nil
	return e
}

// first returns the entry on top, or nil.
func (q *queue[E]) first() *entry[E] {
	if len(q.entries) == 0 {
		return nil
	}
	return q.entries[0]
}

func (q *queue[E]) add(e *entry[E]) { heap.Push(q, e) }
func (q *queue[E]) take() *entry[E] { return heap.Pop(q).(*entry[E]) }

// leave removes e from its queue, if it is in one.
func (e *entry[E]) leave() {
	if e.queue != nil {
		heap.Remove(e.queue, e.index)
	}
}
