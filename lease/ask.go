// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/callback"
)

// patience is how long a worker waits for Gate and Owner. For an answer from memory that
// is long, and a thousand nodes whose answers take longer cost the workers 50 s, once.
const patience = 50 * time.Millisecond

// An asker calls Gate and Owner. A call that takes longer than patience goes on without
// the worker; its answer triggers another visit.
type asker struct {
	gate    GateFunc // may be nil
	owner   OwnerFunc
	limit   time.Duration // later than this after its start, an answer counts as none
	trigger func(nodeName string)

	calls sync.WaitGroup
}

// A question is a call of Gate and Owner for one node.
type question struct {
	asked    time.Time
	answered chan struct{} // closed when the answer is there
	left     atomic.Bool   // no worker waits for it
	answer
}

// An answer is what Gate and Owner said.
type answer struct {
	gate     error // why the gate is closed, or nil
	owner    metav1.OwnerReference
	ownerErr error
	took     time.Duration
	late     bool // there is none: gate says so
}

// A memo is what an asker remembers of one node.
type memo struct {
	open *question // the call that a worker has left, or nil
	slow bool      // the last answer took longer than patience: no worker waits for the next
}

// ask returns the answer for a node. It reports false if there is none yet: then the
// node must be visited again after the returned time, or when the asker triggers it.
// The context must live as long as Run.
func (a *asker) ask(ctx context.Context, nodeName string, m *memo) (answer, time.Duration, bool) {
	q := m.open
	if q == nil {
		q = a.begin(ctx, nodeName)
		m.open = q
		if !m.slow {
			timer := time.NewTimer(patience)
			select {
			case <-q.answered:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		}
		q.left.Store(true)
	}
	age := time.Since(q.asked)
	select {
	case <-q.answered:
		m.open = nil
	default:
		if age < a.limit {
			return answer{}, a.limit - age, false
		}
		m.slow = true
		return a.noAnswer(nodeName), 0, true
	}
	m.slow = q.took > patience
	if q.took >= a.limit {
		return a.noAnswer(nodeName), 0, true
	}
	return q.answer, 0, true
}

// noAnswer returns the answer that stands for one that did not come in time.
func (a *asker) noAnswer(nodeName string) answer {
	return answer{gate: fmt.Errorf("lease: gate and owner of node %q: no answer within %v", nodeName, a.limit), late: true}
}

// begin starts a call.
func (a *asker) begin(ctx context.Context, nodeName string) *question {
	q := &question{asked: time.Now(), answered: make(chan struct{})}
	a.calls.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, a.limit)
		defer cancel()
		got := a.call(ctx, nodeName)
		got.took = time.Since(q.asked)
		q.answer = got
		close(q.answered)
		if q.left.Load() {
			a.trigger(nodeName)
		}
	})
	return q
}

// call calls Gate and, if that is open, Owner.
func (a *asker) call(ctx context.Context, nodeName string) (got answer) {
	if a.gate != nil {
		if got.gate = callback.Contain("Gate", func() error { return a.gate(ctx, nodeName) }); got.gate != nil {
			return got
		}
	}
	got.owner, got.ownerErr = callback.Get("Owner", func() (metav1.OwnerReference, error) { return a.owner(ctx, nodeName) })
	return got
}
