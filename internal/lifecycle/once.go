// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"sync/atomic"
	"time"
)

// Once guards a Run method against a second call. The zero value is ready to
// use.
type Once struct{ started atomic.Bool }

// Begin reports whether this is the first call. If it is not, Run returns its
// package's ErrAlreadyRun.
func (o *Once) Begin() bool { return o.started.CompareAndSwap(false, true) }

// Begun reports whether Begin was called.
func (o *Once) Begun() bool { return o.started.Load() }

// Shutdown returns the context for the work that a controller does after its
// own context is done. It has the values of ctx without its cancellation, and
// ends after timeout.
func Shutdown(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}
