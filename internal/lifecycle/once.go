// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"sync/atomic"
	"time"
)

// Once lets a Run method run once. The zero value is ready to use.
type Once struct{ started atomic.Bool }

// Begin reports whether this is the first call. Run returns its package's
// ErrAlreadyRun where it is not.
func (o *Once) Begin() bool { return o.started.CompareAndSwap(false, true) }

// Begun reports whether Begin was called.
func (o *Once) Begun() bool { return o.started.Load() }

// Shutdown returns the context for what a controller still has to do after its
// own context is done: the values of ctx without its cancellation, for at most
// timeout.
func Shutdown(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}
