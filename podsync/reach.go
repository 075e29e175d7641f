// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// reach follows whether the API server answers, before the informer has its first list.
type reach struct {
	mu     sync.Mutex
	since  time.Time // the beginning, or the first failure after an answer; zero: the last request was answered
	denied bool      // the server does not let this program read pods
}

// note records the result of a request of the informer. An answer is any except 502 to 504,
// which are a proxy's.
func (r *reach) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code := status.Status().Code
		r.denied = r.denied || code == 401 || code == 403
		if code < 502 || code > 504 {
			err = nil
		}
	}
	switch {
	case err == nil || errors.Is(err, errAnswer):
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = time.Now()
	}
}

// begin starts the time without an answer.
func (r *reach) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = time.Now()
}

// offlineIn returns the time until the pods of the Checkpoint may start.
func (r *reach) offlineIn(after time.Duration) (wait time.Duration, never bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		return after, r.denied
	}
	return time.Until(r.since.Add(after)), r.denied
}

// cacheErrors reports errors of the informer's list and watch.
type cacheErrors struct {
	reach    *reach
	nodeName string // Config.NodeName
	handler  report.Handler
	streak   apierr.Streak

	mu      sync.Mutex
	refused error     // the API server refuses the requests; nil if the last one succeeded
	since   time.Time // of refused
}

func (e *cacheErrors) note(ctx context.Context, err error) time.Duration {
	e.refusal(time.Now(), err)
	e.reach.note(err)
	if err == nil {
		e.streak.OK(ctx, "Watching pods works again")
	} else {
		e.streak.Fail(ctx, e.handler, fmt.Errorf("podsync: watch pods: %w", explainPods(e.nodeName, err)), "Failed to watch pods")
	}
	return 0
}

// refusal records an answer that the credentials may not read pods.
func (e *cacheErrors) refusal(now time.Time, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		e.refused = nil
	case apierr.Classify(err) != apierr.Forbidden: // says nothing
	case e.refused == nil:
		e.refused, e.since = err, now
	}
}

// check returns an error if the API server has refused the informer's requests for d.
func (e *cacheErrors) check(d time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refused == nil || time.Since(e.since) < d {
		return nil
	}
	return fmt.Errorf("podsync: the API server does not show the pods of the node: %w", explainPods(e.nodeName, e.refused))
}
