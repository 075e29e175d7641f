// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
)

// group runs functions concurrently. It is what a program that does not use kubewright.Run
// writes instead: the parts of a fleet end side by side, and the end of ten thousand nodes
// takes as long as it takes. The first function that returns cancels the context of all,
// and Wait returns its error after all have returned. A function that returns nil also ends
// the group, because a node must not run without one of its parts.
type group struct {
	ctx, lastCtx       context.Context
	cancel, cancelLast context.CancelFunc
	wg, last           sync.WaitGroup
	once               sync.Once
	err                error
}

// newGroup returns a group under ctx.
func newGroup(ctx context.Context) *group {
	g := &group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	g.lastCtx, g.cancelLast = context.WithCancel(context.WithoutCancel(ctx))
	return g
}

// Go runs f.
func (g *group) Go(f func(ctx context.Context) error) {
	g.wg.Go(func() { g.run(g.ctx, f) })
}

// Last runs f like Go, but cancels its context only after all functions of Go
// have returned. It is for the Run of package lease: a node is alive while the
// last statuses of its pods are written.
func (g *group) Last(f func(ctx context.Context) error) {
	g.last.Go(func() { g.run(g.lastCtx, f) })
}

func (g *group) run(ctx context.Context, f func(ctx context.Context) error) {
	err := f(ctx)
	g.once.Do(func() { g.err = err })
	g.cancel()
}

// Wait waits for all functions and returns the error of the first that ended.
// No function may be added after the call of Wait.
func (g *group) Wait() error {
	g.wg.Wait()
	g.cancelLast()
	g.last.Wait()
	g.cancel()
	return g.err
}
