// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"sync"
	"time"
)

// An inbox has the functions that the goroutine of a pod calls next, in their order.
type inbox struct {
	mu   sync.Mutex
	work []func()
	wake chan struct{}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// after calls f in the goroutine after a while.
func (i *inbox) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() { i.do(f) })
}

// do hands the goroutine a function, from any goroutine.
func (i *inbox) do(f func()) {
	i.mu.Lock()
	i.work = append(i.work, f)
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) takeWork() []func() {
	i.mu.Lock()
	defer i.mu.Unlock()
	work := i.work
	i.work = nil
	return work
}

// await waits for work, for a time if it is not zero, or for the end of ctx.
func (i *inbox) await(ctx context.Context, until time.Time) {
	var timer <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-i.wake:
	case <-timer:
	case <-ctx.Done():
	}
}
