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

	"github.com/kubewright/kubewright/internal/callback"
)

// errAbandoned is the error of a call that did not return when its context was
// done.
var errAbandoned = errors.New("did not return when its deadline had passed")

const (
	// callTimeout is the deadline of each call of Health, Apply and Admit, and of Decode
	// and Validate together.
	callTimeout = 30 * time.Second
	// shutdownTimeout is the time that Run, before it returns, waits for calls that
	// outlive their contexts.
	shutdownTimeout = 10 * time.Second
)

// abandonAfter is the time that a function has to return after its context is
// done.
const abandonAfter = time.Second

// calls runs functions of the program. A function that does not return in time
// is left behind, because the loop that must roll back a bad configuration can't
// wait for a function that this configuration has hung.
type calls struct{ pending sync.WaitGroup }

// start runs f, the function of that name, under a context with a deadline. The channel yields its error,
// or errAbandoned soon after the deadline. busy is set while f runs; if it is
// set already, f is not called and the error is errAbandoned. busy may be nil.
func (c *calls) start(ctx context.Context, name string, timeout time.Duration, busy *atomic.Bool, f func(context.Context) error) <-chan error {
	// Room for both senders: the second one is never read.
	result := make(chan error, 2)
	if busy != nil && !busy.CompareAndSwap(false, true) {
		result <- errAbandoned
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	abandoned := time.AfterFunc(timeout+abandonAfter, func() {
		result <- fmt.Errorf("%w, after %v", errAbandoned, timeout)
	})
	c.pending.Go(func() {
		defer cancel()
		err := callback.Contain(name, func() error { return f(ctx) })
		abandoned.Stop()
		if busy != nil {
			busy.Store(false)
		}
		result <- err
	})
	return result
}

// do runs f like start and waits for it. It returns soon after ctx is done.
func (c *calls) do(ctx context.Context, name string, timeout time.Duration, busy *atomic.Bool, f func(context.Context) error) error {
	result := c.start(ctx, name, timeout, busy, f)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return soon(result)
	}
}

// soon returns the result of a call whose context is done.
func soon(result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-time.After(abandonAfter):
		return errAbandoned
	}
}

// wait waits until every function has returned, or for timeout. It reports
// whether they have.
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

// stoppedTimer returns a timer that does not fire until it is reset.
func stoppedTimer() *time.Timer {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}
