// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"sync"
	"time"
)

// Term is one stay in office. It is a small value that may be copied and used by
// any number of goroutines, also after the term is over. The zero value is a
// term that is over.
type Term struct{ t *term }

// Token is the fencing token: a number that is larger for every later term of
// the same Lease, also when the Lease was deleted in between. What a leader
// writes elsewhere should carry it, and be refused where a larger one was seen
// before; nothing else stops a request that was sent in time and arrives late
// (C. Gray and D. Cheriton, Leases, 1989; M. Burrows, Chubby, 2006). It is the
// resourceVersion of the write that began the term, which Kubernetes documents
// as a number that grows (KEP-5504). A restored backup of etcd sets it back.
// 0 where the API server's resourceVersion is not a number.
func (t Term) Token() uint64 {
	if t.t == nil {
		return 0
	}
	return t.t.token
}

// Valid reports whether this process leads now, by all that it knows: ask
// before each side effect. It is false for good once the context of the term is
// cancelled. For a moment it is also false where the wall clock says that the
// machine was suspended, which the monotonic clock does not notice: until a
// renewal has shown that the lease is still held.
func (t Term) Valid() bool { return t.t != nil && t.t.valid() }

// Deadline is when the term ends if no renewal succeeds any more: the moment
// up to which a request that is sent now may be under way. It moves with every
// renewal; the deadline of the context that was passed to Config.Lead does not
// exist, for the same reason. It is the zero Time if the term is not Valid.
func (t Term) Deadline() time.Time {
	if t.t == nil {
		return time.Time{}
	}
	return t.t.deadlineAt()
}

// term is the state behind Term. It ends by itself at its deadline, also while
// the loop that would extend it is held up in a hook.
type term struct {
	clock  *clock
	token  uint64
	done   func() error // not nil once the context of the work is done
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	over     bool
	expired  bool          // by itself
	deadline time.Duration // of the monotonic clock
	drift    time.Duration // when the renewal that set deadline was sent
	timer    *time.Timer
}

// newTerm begins a term by a write of the lease that was sent at the given
// instant. It ends the work by cancel.
func newTerm(c *clock, token uint64, done func() error, cancel context.CancelCauseFunc, sent instant, deadline time.Duration) *term {
	t := &term{clock: c, token: token, done: done, cancel: cancel, deadline: deadline, drift: sent.drift()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(c.span(deadline-c.now().mono), t.expire)
	return t
}

// extend records that a renewal that was sent at the given instant succeeded.
// It reports false where the term had come to its deadline before.
func (t *term) extend(sent instant, deadline time.Duration) bool {
	now := t.clock.now().mono
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return !t.expired // the work drains
	}
	if now >= t.deadline {
		return false
	}
	t.deadline, t.drift = deadline, sent.drift()
	t.timer.Reset(t.clock.span(deadline - now))
	return true
}

// end makes the term invalid for good and cancels the work.
func (t *term) end(cause error) {
	t.mu.Lock()
	t.over = true
	t.timer.Stop()
	t.mu.Unlock()
	t.cancel(cause)
}

// expire ends the term where its deadline has come.
func (t *term) expire() {
	now := t.clock.now().mono
	t.mu.Lock()
	due := now >= t.deadline && !t.over
	t.expired = t.expired || due
	if !due && !t.over {
		t.timer.Reset(t.clock.span(t.deadline - now))
	}
	t.mu.Unlock()
	if due {
		t.end(ErrExpired)
	}
}

func (t *term) valid() bool {
	_, ok := t.left()
	return ok
}

// left returns the time until the deadline, and whether the term is valid.
func (t *term) left() (time.Duration, bool) {
	now := t.clock.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.deadline - now.mono, !t.over && t.done() == nil && now.mono < t.deadline && now.drift()-t.drift <= maxDrift
}

func (t *term) deadlineAt() time.Time {
	left, ok := t.left()
	if !ok {
		return time.Time{}
	}
	return time.Now().Add(t.clock.span(left))
}
