// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package callqueue makes calls for many names, a bounded number at once.
package callqueue

import (
	"context"
	"sync"
)

// A Queue makes calls for names, in the order in which they were asked for. Each name
// has at most one call under way, and all together have at most a limit. A name that
// waits for its turn has no goroutine. Use New to make one; all methods may be called
// by any number of goroutines.
type Queue struct {
	limit int
	call  func(ctx context.Context, name string)

	mu      sync.Mutex
	ctx     context.Context // of Run; nil while no call may begin
	waiting []string
	names   map[string]*entry // those that wait or are under way
	running int
	workers sync.WaitGroup
}

// entry is a name in a Queue.
type entry struct {
	cancel context.CancelFunc // ends the call that is under way; nil while it waits
	again  bool               // asked for while it was under way
}

// New returns a Queue that makes no call before Open. limit is the largest number of
// calls at once.
func New(limit int, call func(ctx context.Context, name string)) *Queue {
	return &Queue{limit: limit, call: call, names: make(map[string]*entry)}
}

// Open lets calls begin. Their contexts end with ctx.
func (q *Queue) Open(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctx = ctx
}

// Close lets no further call begin, and waits for those that are under way.
func (q *Queue) Close() {
	q.mu.Lock()
	q.ctx = nil
	q.mu.Unlock()
	q.workers.Wait()
}

// Add asks for a call for a name. One that waits already is enough; during a call of
// the name it asks for another. Add does nothing unless the Queue is open.
func (q *Queue) Add(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil {
		return
	}
	if n, ok := q.names[name]; ok {
		n.again = n.cancel != nil
		return
	}
	q.names[name] = &entry{}
	q.waiting = append(q.waiting, name)
	if q.running < q.limit {
		q.running++
		q.workers.Go(q.work)
	}
}

// Cancel ends the context of the call of a name, if one is under way.
func (q *Queue) Cancel(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n, ok := q.names[name]; ok && n.cancel != nil {
		n.cancel()
	}
}

// work makes calls until none waits.
func (q *Queue) work() {
	for {
		ctx, name, ok := q.next()
		if !ok {
			return
		}
		q.call(ctx, name)
		q.done(name)
	}
}

// next returns the call that has waited longest.
func (q *Queue) next() (ctx context.Context, name string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || q.ctx == nil {
		q.running--
		return nil, "", false
	}
	name, q.waiting = q.waiting[0], q.waiting[1:]
	ctx, q.names[name].cancel = context.WithCancel(q.ctx)
	return ctx, name, true
}

// done ends the call of a name, and lets it wait again if that was asked for.
func (q *Queue) done(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.names[name]
	n.cancel()
	if !n.again {
		delete(q.names, name)
		return
	}
	n.cancel, n.again = nil, false
	q.waiting = append(q.waiting, name)
}
