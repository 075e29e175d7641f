// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package callback

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// A PanicError is a panic in a callback. It does not wrap the argument of panic: an
// error there is no answer of the callback, such as "the Node does not exist".
type PanicError struct {
	callback string
	value    any
	stack    []byte
}

// Error implements error, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.callback, e.value) }

// Stack returns the stack of the goroutine that panicked.
func (e *PanicError) Stack() []byte { return e.stack }

// Contain calls f, which calls the callback of that name, and returns a panic in it
// as a *PanicError.
func Contain(callback string, f func() error) error {
	_, err := Get(callback, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// Get is Contain for a callback that returns a value.
func Get[T any](callback string, f func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{callback: callback, value: p, stack: debug.Stack()}
		}
	}()
	return f()
}

// A LateError says that a callback gave no answer in time.
type LateError struct{ limit time.Duration }

// Error implements error.
func (e *LateError) Error() string { return fmt.Sprintf("no answer within %v", e.limit) }

// Failed reports whether err is no answer of a callback: it panicked, or was late.
func Failed(err error) bool {
	_, late := errors.AsType[*LateError](err)
	_, panicked := errors.AsType[*PanicError](err)
	return late || panicked
}

// GateLimit is the Limit of gates that do not belong to a lease: after it, one that has not
// answered counts as closed. With the default Duration it is that of a lease's gate, too.
const GateLimit = 2500 * time.Millisecond

// A Room calls a function about many subjects; see the package comment for the contract.
// Its fields must not change after the first call. All methods may be called by any number
// of goroutines.
type Room[T any] struct {
	// Name is the function as Config spells it, for a PanicError.
	Name string
	// Limit is the time after which the context of a call ends, and its answer is none.
	Limit time.Duration
	// Patience is the time that Visit waits. It does not wait if the last call of the line
	// took longer than that.
	Patience time.Duration
	// Fresh makes Visit ask again if it comes later than Limit after the start of a call that
	// has returned in time. It is for a caller that acts on the answer at once.
	Fresh bool
	// Late is called after a call has returned that a caller had left. It must not block.
	// Nil calls nothing.
	Late func(subject string)

	mu    sync.Mutex // guards lines, and the calls that they have
	begun uint64     // calls
	calls sync.WaitGroup
}

// A Line is what a Room knows of one subject. The zero value is ready for use.
type Line[T any] struct {
	call *call[T] // under way, or returned and not yet taken by a visit; nil for none
	slow bool     // the last call that a visit began took longer than Patience
}

// A call is a call of the function.
type call[T any] struct {
	number   uint64 // of those that the room has begun
	at       time.Time
	returned chan struct{} // closed after value, err and took are set
	value    T
	err      error
	took     time.Duration

	visit bool // a visit began it, so that a later one takes the answer
	left  bool // a caller has left it
	again bool // a visit came after it had begun
}

// Ask calls f about the subject of line and returns its answer. It waits for Limit at most,
// and returns the error of ctx when that is done.
func (r *Room[T]) Ask(ctx context.Context, subject string, line *Line[T], f func(context.Context) (T, error)) (T, error) {
	asked := time.Now()
	var before uint64
	for first := true; ; first = false {
		r.mu.Lock()
		if first {
			before = r.begun
		}
		c := line.call
		if c == nil || c.hasReturned() {
			c = r.begin(ctx, subject, line, f)
		}
		r.mu.Unlock()
		wait := r.Limit - time.Since(asked)
		if c.number <= before && time.Since(c.at) >= r.Limit {
			wait = 0 // it hangs
		}
		if !await(ctx, c.returned, wait, time.After) {
			r.leave(c)
			return *new(T), r.noAnswer(ctx)
		}
		if c.number > before {
			return r.answer(c)
		}
	}
}

// Visit calls f about the subject of line, or takes the answer of the call that an earlier
// visit has left. It reports false if there is no answer yet: then the subject must be
// visited again when Late is called, and no later than after the returned time. A line must
// have one visit at a time.
func (r *Room[T]) Visit(ctx context.Context, subject string, line *Line[T], f func(context.Context) (T, error)) (value T, err error, wait time.Duration, ok bool) {
	patience := r.Patience
	if line.slow {
		patience = 0
	}
	for {
		r.mu.Lock()
		c := line.call
		switch {
		case c == nil || c.hasReturned() && (!c.visit || r.Fresh && c.took < r.Limit && time.Since(c.at) >= r.Limit):
			c = r.begin(ctx, subject, line, f)
			c.visit = true
		case c.visit:
			c.again = c.again || !c.hasReturned() && time.Since(c.at) < r.Limit
			patience = 0 // an earlier visit has had it
		}
		r.mu.Unlock()
		if !await(ctx, c.returned, patience, time.After) && r.leave(c) {
			age := time.Since(c.at)
			if age < r.Limit {
				return value, nil, r.Limit - age, false
			}
			line.slow = true
			return value, r.noAnswer(ctx), 0, true
		}
		if c.visit {
			value, err = r.take(subject, line, c)
			return value, err, 0, true
		}
	}
}

// begin starts a call. r.mu must be held.
func (r *Room[T]) begin(ctx context.Context, subject string, line *Line[T], f func(context.Context) (T, error)) *call[T] {
	r.begun++
	c := &call[T]{number: r.begun, at: time.Now(), returned: make(chan struct{})}
	line.call = c
	r.calls.Go(func() {
		callCtx, cancel := context.WithTimeout(ctx, r.Limit)
		defer cancel()
		value, err := Get(r.Name, func() (T, error) { return f(callCtx) })
		r.mu.Lock()
		c.value, c.err, c.took = value, err, time.Since(c.at)
		close(c.returned)
		left := c.left
		r.mu.Unlock()
		if left && r.Late != nil {
			r.Late(subject)
		}
	})
	return c
}

// hasReturned reports whether c has returned. r.mu must be held.
func (c *call[T]) hasReturned() bool {
	select {
	case <-c.returned:
		return true
	default:
		return false
	}
}

// leave records that a caller has left c. It reports false if c has returned.
func (r *Room[T]) leave(c *call[T]) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.left = !c.hasReturned()
	return c.left
}

// take takes the answer of c, which has returned, for a visit.
func (r *Room[T]) take(subject string, line *Line[T], c *call[T]) (T, error) {
	r.mu.Lock()
	if line.call == c {
		line.call = nil
	}
	line.slow = c.took > r.Patience
	again := c.again
	r.mu.Unlock()
	if again && r.Late != nil {
		r.Late(subject)
	}
	return r.answer(c)
}

// answer returns the answer of c, which has returned.
func (r *Room[T]) answer(c *call[T]) (T, error) {
	if c.took >= r.Limit {
		return *new(T), &LateError{r.Limit}
	}
	return c.value, c.err
}

// noAnswer returns the error for a caller that has left.
func (r *Room[T]) noAnswer(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &LateError{r.Limit}
}

// Wait returns when all calls have returned. It must not be called before the last Ask or
// Visit has begun.
func (r *Room[T]) Wait() { r.calls.Wait() }

// WaitFor is Wait for a limited time. It reports whether all calls have returned. If they
// have not, one goroutine waits for the rest of them.
func (r *Room[T]) WaitFor(d time.Duration) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.calls.Wait()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// steps is the number of parts in which await counts.
const steps = 5

// await waits until done is closed, and reports false if that does not happen within d, or
// before ctx is done. It counts d in a few steps, each of which counts for no more than
// its length: a process that was stopped for a while has not waited, and the function may
// answer at once.
func await(ctx context.Context, done <-chan struct{}, d time.Duration, after func(time.Duration) <-chan time.Time) bool {
	for n := steps; ; n-- {
		select {
		case <-done:
			return true
		default:
		}
		if n == 0 || d <= 0 {
			return false
		}
		select {
		case <-done:
			return true
		case <-after(d / steps):
		case <-ctx.Done():
			return false
		}
	}
}
