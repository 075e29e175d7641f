// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"sync"
)

// Group runs functions concurrently. The first function that returns cancels
// the context of all, and Wait returns its error after all have returned. It is
// the part of golang.org/x/sync/errgroup that the examples need, with one
// difference: a function that returns nil also ends the group, because a
// kubelet must not run without one of its controllers.
type Group struct {
	ctx, lastCtx       context.Context
	cancel, cancelLast context.CancelFunc
	wg, last           sync.WaitGroup
	once               sync.Once
	err                error
}

// NewGroup returns a Group under ctx.
func NewGroup(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	g.lastCtx, g.cancelLast = context.WithCancel(context.WithoutCancel(ctx))
	return g
}

// Go runs f.
func (g *Group) Go(f func(ctx context.Context) error) {
	g.wg.Go(func() { g.run(g.ctx, f) })
}

// Last runs f like Go, but cancels its context only after all functions of Go
// have returned. It is for the Run of package lease: a node is alive while the
// last statuses of its pods are written.
func (g *Group) Last(f func(ctx context.Context) error) {
	g.last.Go(func() { g.run(g.lastCtx, f) })
}

func (g *Group) run(ctx context.Context, f func(ctx context.Context) error) {
	err := f(ctx)
	g.once.Do(func() { g.err = err })
	g.cancel()
}

// Wait waits for all functions and returns the error of the first that ended.
// No function may be added after the call of Wait.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancelLast()
	g.last.Wait()
	g.cancel()
	return g.err
}
