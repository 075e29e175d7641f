// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"hash/fnv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
)

// visit decides about a Lease and does the next thing.
func (c *Controller) visit(ctx context.Context, key types.NamespacedName) {
	now := time.Now()
	c.mu.Lock()
	e := c.index[key]
	if e == nil {
		c.mu.Unlock()
		return
	}
	e.offersFrom = c.dropped.retryAt(key)
	d := decide(now, c.rules, &e.situation)
	silent := e.newlySilent(now, c.rules)
	var r *request
	if d.do == wait {
		e.settled(now, c)
	} else if hold := e.hold(now); hold > 0 {
		d.wakeAt = now.Add(hold)
	} else {
		r = e.request(now, d)
	}
	c.mu.Unlock()
	c.tellSilent(ctx, key, silent)
	if r != nil {
		klog.FromContext(ctx).V(5).Info("Decided", "lease", key, "action", d.do, "candidate", r.name, "why", d.why)
		c.carryOut(ctx, e, r)
		return
	}
	if !d.wakeAt.IsZero() {
		c.queue.AddAfter(key, d.wakeAt.Sub(now))
	}
}

// carryOut sends a request and has the Lease looked at again.
func (c *Controller) carryOut(ctx context.Context, e *entry, r *request) {
	err := c.send(ctx, r)
	if err != nil && ctx.Err() != nil {
		return // cut short: the next Controller goes on from what is stored
	}
	if err != nil {
		c.refresh(ctx, r, err)
	}
	c.mu.Lock()
	now := time.Now()
	current := c.index[r.key] == e
	var wait time.Duration
	if current {
		c.takeIn(now, e, r)
		if err == nil {
			err = c.effect(now, r)
		}
		wait = e.outcome(now, r, err)
	}
	well := e.well()
	c.mu.Unlock()
	c.tell(ctx, e, r, err, well)
	if current {
		c.queue.AddAfter(r.key, wait)
	}
}

const worksAgain = "Requests about Leases work again"

// attempts is what became of the requests about a Lease.
type attempts struct {
	failing  action // what failed last; wait for nothing
	failures int    // in a row
	retryAt  time.Time
	streak   report.Member

	tokens  float64 // requests that may be sent now
	tokenAt time.Time
}

// The pace of requests about one Lease. An election needs three or four, and
// one more every AckTimeout while candidates don't answer. What needs more in
// the long run is a quarrel with somebody who undoes what we do.
const (
	requestBurst = 12
	requestRate  = 1 // a second
)

// hold returns how long no request may be sent, and counts one where that is 0.
func (e *entry) hold(now time.Time) time.Duration {
	if wait := e.retryAt.Sub(now); wait > 0 {
		return wait
	}
	if e.tokenAt.IsZero() {
		e.tokens = requestBurst
	} else {
		e.tokens = min(requestBurst, e.tokens+requestRate*now.Sub(e.tokenAt).Seconds())
	}
	e.tokenAt = now
	if e.tokens < 1 {
		return time.Duration((1-e.tokens)/requestRate*float64(time.Second)) + 1
	}
	e.tokens--
	return 0
}

// The waits after failures. Conflicts mean that somebody was faster, and come
// with what that has done; refusals last until an operator does something.
func conflictRetries() backoff.Policy {
	return backoff.Policy{Base: 50 * time.Millisecond, Cap: 30 * time.Second}
}
func requestRetries() backoff.Policy {
	return backoff.Policy{Base: 250 * time.Millisecond, Cap: 30 * time.Second}
}
func refusedRetries() backoff.Policy {
	return backoff.Policy{Base: 5 * time.Second, Cap: 5 * time.Minute}
}

// outcome notes how a request ended, and returns when to decide again.
func (e *entry) outcome(now time.Time, r *request, err error) time.Duration {
	c := e.candidates[r.name]
	if err == nil || errors.Is(err, ErrOffersDropped) {
		if e.failing == r.do {
			e.failing, e.failures = wait, 0
		}
		if c != nil {
			c.refusals = 0
		}
		return 0
	}
	class := apierr.Classify(err)
	if class == apierr.NotFound && !r.gone {
		class = apierr.Forbidden // it is the API that is not there
	}
	if r.ofCandidate() && c != nil && (class == apierr.Forbidden || class == apierr.Invalid || errors.Is(err, errAltered)) {
		c.refusals++
		c.retryAt = now.Add(refusedRetries().Delay(c.refusals))
		return 0 // the others may do
	}
	if e.failing != r.do {
		e.failing, e.failures = r.do, 0
	}
	e.failures++
	delay := time.Duration(0)
	switch class {
	case apierr.Conflict, apierr.AlreadyExists, apierr.NotFound:
		delay = conflictRetries().Delay(e.failures)
	case apierr.Forbidden, apierr.Invalid, apierr.Unauthorized:
		delay = refusedRetries().Delay(e.failures)
	default:
		delay = requestRetries().Delay(e.failures)
		if errors.Is(err, errAltered) {
			delay = refusedRetries().Delay(e.failures)
		}
	}
	delay = max(delay, apierr.RetryAfter(err))
	e.retryAt = now.Add(delay)
	return delay
}

// well reports whether no request about the Lease fails.
func (e *entry) well() bool {
	if e.failures > 0 {
		return false
	}
	for _, c := range e.candidates {
		if c.refusals > 0 {
			return false
		}
	}
	return true
}

// settled ends the failures of a Lease that is held and renewed.
func (e *entry) settled(now time.Time, c *Controller) {
	if e.failures > 0 && e.lease != nil && e.lease.holder != "" && now.Before(e.silentAtOf(e.lease, c.rules)) {
		e.failing, e.failures = wait, 0
		if e.well() {
			c.electing.OK(c.ctx, &e.streak, worksAgain)
		}
	}
}

// newlySilent returns the candidates that have left a ping unanswered, each
// once for a ping.
func (e *entry) newlySilent(now time.Time, r *rules) (names []string) {
	for name, c := range e.candidates {
		if !c.missed && c.late(now, r) {
			c.missed = true
			names = append(names, name)
		}
	}
	return names
}

// dropped is what is known of an API server that drops preferredHolder.
type dropped struct {
	at       time.Time
	reported bool
}

// The Controller tries again after an hour, with one Lease after the other
// within another hour: the first one speaks for all.
const (
	droppedFor    = time.Hour
	droppedSpread = time.Hour
)

// retryAt is when an offer about a Lease is worth a try.
func (d dropped) retryAt(key types.NamespacedName) time.Time {
	if d.at.IsZero() {
		return time.Time{}
	}
	h := fnv.New32a()
	h.Write([]byte(key.String())) // never fails
	return d.at.Add(droppedFor + time.Duration(float64(h.Sum32())/(1<<32)*float64(droppedSpread)))
}
