// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/internal/apierr"
)

const (
	// resetAfter is the number of calls in a row without an answer that make a
	// connection suspect. One may be a slow server.
	resetAfter = 2
	// resetGap is the least time between two resets.
	resetGap = time.Minute
)

// A resetter calls a function if the connection seems to be dead: if calls reach
// their deadline without one byte of an answer. An error of the API server is an
// answer, and so is a connection that is refused. client-go repeats a request that
// was answered with Retry-After, and sleeps in between, until the deadline: that
// error looks like a dead connection, and the first byte of the answer shows that it
// is none.
type resetter struct {
	reset func() // may be nil

	mu       sync.Mutex
	timeouts int // since the last answer
	last     time.Time
}

// begin returns the context of a call, if there is a function to reset, and a function that is called with its error.
func (r *resetter) begin(ctx context.Context) (context.Context, func(error)) {
	var answered atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { answered.Store(true) }})
	return ctx, func(err error) {
		if r.due(err, answered.Load()) {
			r.reset()
		}
	}
}

// due records the end of a call and reports whether the connections must be closed.
func (r *resetter) due(err error, answered bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var answer apierrors.APIStatus
	switch {
	case err == nil || answered || errors.As(err, &answer):
		r.timeouts = 0
		return false
	case apierr.Classify(err) != apierr.Timeout:
		return false
	}
	r.timeouts++
	if r.timeouts < resetAfter || !r.last.IsZero() && time.Since(r.last) < resetGap {
		return false
	}
	r.timeouts, r.last = 0, time.Now()
	return true
}
