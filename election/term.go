// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"sync"
	"time"

	"github.com/kubewright/kubewright/election/internal/machine"
)

// Term is one period in which this candidate leads. It is a small value that may be
// copied and used by any number of goroutines, also after the term is over. The zero
// value is a term that is over.
type Term struct{ t *term }

// Token returns the fencing token: a number that is larger for every later term of
// the same Lease, even if the Lease was deleted in between. Writes to other systems
// should carry it, and those systems should reject a number that is smaller than
// one they have seen. Nothing else stops a request that was sent in time and arrives
// late (C. Gray and D. Cheriton, Leases, 1989; M. Burrows, Chubby, 2006).
//
// The token is the resourceVersion of the write that began the term, which
// Kubernetes documents as a growing number (KEP-5504). A restored backup of etcd
// sets it back. It is 0 if the resourceVersion is not a number.
func (t Term) Token() uint64 {
	if t.t == nil {
		return 0
	}
	return t.t.token
}

// Valid reports whether this process leads now, as far as it can know. Call it
// before each side effect. It is false for good once the context of the term is
// cancelled. It is also false after a suspension of the machine, which only the
// wall clock shows, until a renewal has succeeded. If the process is frozen between
// Valid and the side effect, only the Token helps.
func (t Term) Valid() bool {
	_, ok := t.left()
	return ok
}

// Deadline returns the time at which the term ends if no other renewal succeeds. It
// moves with every renewal, so the context of Config.Lead has no deadline. It is the
// zero Time if the term is not Valid.
func (t Term) Deadline() time.Time {
	left, ok := t.left()
	if !ok {
		return time.Time{}
	}
	return time.Now().Add(t.t.clock.span(left))
}

// left returns the time until the deadline, and whether the term is valid.
func (t Term) left() (time.Duration, bool) {
	if t.t == nil {
		return 0, false
	}
	now := t.t.clock.now()
	t.t.mu.Lock()
	defer t.t.mu.Unlock()
	return t.t.deadline - now.Mono, !t.t.over && t.t.done() == nil && now.Mono < t.t.deadline && !t.t.drifted(now)
}

// term enforces the deadline of a term: a timer ends the term at the deadline even if
// the loop is blocked in a hook. Renewals move it, also while the work drains. If the work
// still runs when Drain has passed after that, the timer reports the overrun.
//
// Invariant: a term that is over stays over, and one that has expired is not
// extended.
type term struct {
	token uint64
	clock *clock

	drain time.Duration // from the end of a term that can't be renewed to its overrun

	// Set by start.
	done    func() error
	cancel  context.CancelCauseFunc
	overrun func(cause error)

	mu       sync.Mutex
	sent     machine.Instant // when the last successful write was sent
	deadline time.Duration   // of the monotonic clock
	over     bool            // the context of the work is cancelled
	expired  bool            // the term can't be renewed any more, because of cause
	cause    error
	returned bool        // the work has returned, or the overrun was reported
	timer    *time.Timer // nil before start
}

// start binds the term to its work: done and cancel are those of the context, and overrun
// is called if the work outlives the lease. It reports false if the term has expired.
func (t *term) start(done func() error, cancel context.CancelCauseFunc, overrun func(cause error)) bool {
	now := t.clock.now().Mono
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.cancel, t.overrun = done, cancel, overrun
	t.timer = time.AfterFunc(t.clock.span(t.deadline-now), t.fire)
	return now < t.deadline
}

// extend moves the deadline after a renewal that was sent at the given instant. It
// reports false if the term had expired before.
func (t *term) extend(now time.Duration, sent machine.Instant, deadline time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.expired || now >= t.deadline {
		return false
	}
	t.sent, t.deadline = sent, deadline // also while the work drains
	if t.timer != nil && !t.returned {
		t.timer.Reset(t.clock.span(deadline - now))
	}
	return true
}

// fire is called by the timer: at the deadline, and when the work has overrun it.
func (t *term) fire() {
	now := t.clock.now().Mono
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.returned {
		return
	}
	if now < t.deadline { // a renewal came in between
		t.timer.Reset(t.clock.span(t.deadline - now))
		return
	}
	if !t.expired {
		t.over, t.expired, t.cause = true, true, ErrExpired
		t.cancel(ErrExpired)
	}
	if left := t.deadline + t.drain - now; left > 0 {
		t.timer.Reset(t.clock.span(left))
		return
	}
	t.returned = true
	t.overrun(t.cause)
}

// lose ends a term that can't be renewed any more.
func (t *term) lose(cause error) {
	now := t.clock.now().Mono
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.expired {
		t.expired, t.cause, t.deadline = true, cause, min(t.deadline, now)
		if !t.returned {
			t.timer.Reset(t.clock.span(t.deadline + t.drain - now))
		}
	}
	t.over = true
	t.cancel(cause)
}

// end makes the term invalid for good and cancels the work. It may be called again.
func (t *term) end(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.cancel(cause)
}

// finish says that the work has returned, or does not begin. No overrun follows.
func (t *term) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.returned = true
	t.timer.Stop()
}

// drifted reports whether the machine was suspended since the last renewal. t.mu must be
// held.
func (t *term) drifted(now machine.Instant) bool {
	return now.Drift()-t.sent.Drift() > machine.MaxDrift
}
