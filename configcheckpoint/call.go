// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// errAbandoned is the error of a call that did not return when its context was
// done.
var errAbandoned = errors.New("did not return when its deadline had passed")

// calls runs functions of the embedder that take a context. One that does not
// return in time is left behind, because the loop that must roll back a bad
// configuration can't wait for what that configuration has hung. It is not
// called again before it has returned.
type calls struct{ pending sync.WaitGroup }

// start runs f under a context with a deadline. The channel yields its error,
// or errAbandoned soon after the deadline. busy is set while f runs; where it
// is set already f is not called, and the error is errAbandoned.
func (c *calls) start(ctx context.Context, timeout time.Duration, busy *atomic.Bool, f func(context.Context) error) <-chan error {
	// Room for both senders: the one that comes second is never read.
	result := make(chan error, 2)
	if !busy.CompareAndSwap(false, true) {
		result <- errAbandoned
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	abandoned := time.AfterFunc(timeout+abandonAfter, func() {
		result <- fmt.Errorf("%w, after %v", errAbandoned, timeout)
	})
	c.pending.Go(func() {
		defer cancel()
		_, err := guard(func() (struct{}, error) { return struct{}{}, f(ctx) })
		abandoned.Stop()
		busy.Store(false)
		result <- err
	})
	return result
}

// abandonAfter is what a function has to return in once its context is done.
const abandonAfter = time.Second

// do runs f like start and waits for it. It returns soon after ctx is done.
func (c *calls) do(ctx context.Context, timeout time.Duration, busy *atomic.Bool, f func(context.Context) error) error {
	result := c.start(ctx, timeout, busy, f)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	case <-time.After(abandonAfter):
		return errAbandoned
	}
}

// wait waits until every function has returned, or for timeout.
func (c *calls) wait(timeout time.Duration) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.pending.Wait()
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
