// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"sync"
)

// Group runs functions at the same time. The first that returns ends the
// context of all, and Wait returns its error when all have returned. It is
// golang.org/x/sync/errgroup as far as the examples need it, with one
// difference: a function that returns nil ends the group too, for a kubelet
// without one of its controllers is not half a kubelet.
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

// Last runs f as Go does, but ends its context only when all functions of Go
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
// No function may be added after it was called.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancelLast()
	g.last.Wait()
	g.cancel()
	return g.err
}
