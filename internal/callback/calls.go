// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package callback

import (
	"context"
	"sync"
	"time"
)

// Calls are for a caller that keeps the state of each call itself, because what a late
// answer is worth is a decision of its own. The zero value is ready for use. All methods
// may be called by any number of goroutines.
type Calls struct{ under sync.WaitGroup }

// A Call is one that Begin has begun.
type Call struct {
	returned chan struct{} // closed after err is set
	err      error
	cancel   context.CancelFunc
}

// Begin calls f, which calls the callback of that name. A panic is its error. The context
// of f ends with ctx. returned is called with the error before a caller of Wait has it.
func (c *Calls) Begin(ctx context.Context, name string, f func(context.Context) error, returned func(error)) *Call {
	ctx, cancel := context.WithCancel(ctx)
	call := &Call{returned: make(chan struct{}), cancel: cancel}
	c.under.Go(func() {
		defer cancel()
		call.err = Contain(name, func() error { return f(ctx) })
		returned(call.err)
		close(call.returned)
	})
	return call
}

// Wait waits for the call for patience at most. A process that was stopped for a while has
// not waited. It reports false if the call goes on, or ctx is done.
func (c *Call) Wait(ctx context.Context, patience time.Duration) (err error, ok bool) {
	if !await(ctx, c.returned, patience, time.After) {
		return nil, false
	}
	return c.err, true
}

// Leave ends the context of the call after a while.
func (c *Call) Leave(after time.Duration) { time.AfterFunc(after, c.cancel) }

// Err waits until the call has returned, and returns its error.
func (c *Call) Err() error {
	<-c.returned
	return c.err
}

// Wait returns when all calls have returned. It must not be called before the last Begin.
func (c *Calls) Wait() { c.under.Wait() }
