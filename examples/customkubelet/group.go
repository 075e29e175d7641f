// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
)

// runTogether runs the controllers until one of them returns, then stops the
// others, and returns the first error, because a node must not run without one
// of its controllers. It stops the last controller after all others have
// returned. If that is package lease's, the node is alive while the others
// write their last status.
func runTogether(ctx context.Context, last func(context.Context) error, others ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lastCtx, cancelLast := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelLast()
	var (
		once  sync.Once
		first error
	)
	run := func(ctx context.Context, f func(context.Context) error) {
		err := f(ctx)
		once.Do(func() { first = err })
		cancel()
	}
	var wg, lastOne sync.WaitGroup
	lastOne.Go(func() { run(lastCtx, last) })
	for _, f := range others {
		wg.Go(func() { run(ctx, f) })
	}
	wg.Wait()
	<-ctx.Done()
	cancelLast()
	lastOne.Wait()
	return first
}
