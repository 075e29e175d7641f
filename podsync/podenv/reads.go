// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
)

// objectKey names the object that a request reads.
type objectKey struct {
	kind, namespace, name string
}

// reads shares requests between callers that ask for the same object at the same
// time, without ever giving a caller something that was read before it asked: who
// asks while a request is under way waits for the next one, together with all
// others that do. A thousand pods that name one ConfigMap and start at once cost a
// few requests, and a pod that is created after its ConfigMap was changed sees the
// change.
type reads struct {
	timeout time.Duration
	panics  apierr.Group // has no end: one that happens at each request is reported once

	mu      sync.Mutex
	flights map[objectKey]*flight
}

// flight is one request and those who wait for it.
type flight struct {
	fetch func() (any, error)
	done  chan struct{} // closed when obj and err are set
	obj   any
	err   error
	next  *flight // starts when this one is done; guarded by reads.mu
}

// get returns what fetch returns, from a request that began after the call, or, if
// it needn't be that fresh, from one that is under way. The object is shared and
// read-only. It returns early, with ctx's error, when ctx is
// done; the request then goes on for the others, within the timeout.
func (r *reads) get(ctx context.Context, key objectKey, fresh bool, fetch func(context.Context) (any, error)) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f := r.join(ctx, key, fresh, fetch)
	select {
	case <-f.done:
		return f.obj, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join returns the flight to wait for.
func (r *reads) join(ctx context.Context, key objectKey, fresh bool, fetch func(context.Context) (any, error)) *flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.flights[key]
	switch {
	case current != nil && !fresh:
		return current
	case current != nil && current.next != nil:
		return current.next
	}
	f := &flight{done: make(chan struct{}), fetch: func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
		defer cancel()
		// No caller could contain a panic of the client: it would end the process.
		obj, err := callback.Get("a client", func() (any, error) { return fetch(ctx) })
		if _, ok := errors.AsType[*callback.PanicError](err); ok {
			r.panics.Fail(ctx, nil, &apierr.Member{}, err, "A callback panicked", "kind", key.kind, "object", klog.KRef(key.namespace, key.name))
		}
		return obj, err
	}}
	if current != nil {
		current.next = f
		return f
	}
	if r.flights == nil {
		r.flights = map[objectKey]*flight{}
	}
	r.flights[key] = f
	go r.run(key, f)
	return f
}

// run makes requests for key until no caller waits for another.
func (r *reads) run(key objectKey, f *flight) {
	for f != nil {
		f.obj, f.err = f.fetch()
		close(f.done)

		r.mu.Lock()
		f = f.next
		if f == nil {
			delete(r.flights, key)
		} else {
			r.flights[key] = f
		}
		r.mu.Unlock()
	}
}
