// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"fmt"
	"slices"
	"time"

	"github.com/kubewright/kubewright/podsync"
)

// A Call is an entry of the journal.
type Call struct {
	// Op is the method.
	Op podsync.Op
	// Ref is the pod; zero for List and Watch.
	Ref podsync.Ref
	// Generation is that of the pod that Start or Update was given.
	Generation int64
	// Grace and Reason are those that Stop was given.
	Grace  time.Duration
	Reason podsync.StopReason
	// Begin and End are when it began and returned; End is zero while it is
	// under way.
	Begin, End time.Time
	// Err is the returned error.
	Err error
	// Cut says that the connection was cut during the call.
	Cut bool

	from *Provider
}

// A record holds the facts about a pod that the backend judges by and never forgets.
type record struct {
	started, stopped, lost bool
	grace                  time.Duration // of the last Stop
	busy                   *Call         // under way
}

func (b *Backend) recordOf(ref podsync.Ref) *record {
	r := b.history[ref.UID]
	if r == nil {
		r = &record{}
		b.history[ref.UID] = r
	}
	return r
}

// begin enters a call, and judges whether it may be made.
func (b *Backend) begin(p *Provider, c Call) *Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.Begin, c.from = time.Now(), p
	entry := &c
	b.calls = append(b.calls, entry)
	if c.Op == podsync.OpList {
		return entry
	}
	r := b.recordOf(c.Ref)
	if r.busy != nil {
		b.violate("%s of %v during %s", c.Op, c.Ref, r.busy.Op)
	}
	r.busy = entry
	switch c.Op {
	case podsync.OpStart, podsync.OpUpdate:
		if r.stopped {
			b.violate("%s of %v after Stop", c.Op, c.Ref)
		}
		r.started = true
		if c.Op == podsync.OpStart {
			b.judgeName(c.Ref)
		}
	case podsync.OpStop:
		if c.Grace < time.Second {
			b.violate("Stop of %v with grace %v", c.Ref, c.Grace)
		}
		if r.stopped && c.Grace > r.grace {
			b.violate("Stop of %v with grace %v after %v", c.Ref, c.Grace, r.grace)
		}
		r.stopped, r.grace = true, c.Grace
	}
	return entry
}

// judgeName checks that no other pod of the name runs.
func (b *Backend) judgeName(ref podsync.Ref) {
	for uid, in := range b.pods {
		if uid != ref.UID && in.ref.Namespace == ref.Namespace && in.ref.Name == ref.Name && !in.state.Stopped {
			b.violate("Start of %v while %v runs", ref, in.ref)
		}
	}
}

// finish completes the entry of a call.
func (b *Backend) finish(c *Call, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.history[c.Ref.UID]; r != nil && r.busy == c {
		r.busy = nil
	}
	c.End, c.Err = time.Now(), err
}

// forgetCalls ends the calls of a connection that was cut.
func (b *Backend) forgetCalls(p *Provider) {
	for _, r := range b.history {
		if r.busy != nil && r.busy.from == p {
			r.busy = nil
		}
		// The next process knows neither why the pod was to end nor how soon.
		r.stopped = false
	}
	for _, c := range b.calls {
		if c.from == p && c.End.IsZero() {
			c.Cut = true
		}
	}
}

func (b *Backend) violate(format string, args ...any) {
	b.violations = append(b.violations, fmt.Sprintf(format, args...))
}

// Restored records that the API server was restored from a backup. A pod whose deletion that
// undoes may be started again, so this is no breach of the contract.
func (b *Backend) Restored() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.history {
		r.stopped = false
	}
}

// Violations returns every breach of podsync's contract with providers that
// the backend saw: calls that overlap, Start after Stop, two pods of one name,
// and so on.
func (b *Backend) Violations() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.violations)
}

// Calls returns the journal in the order in which calls began: those of an
// operation, or all for "".
func (b *Backend) Calls(op podsync.Op) []Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	var calls []Call
	for _, c := range b.calls {
		if op == "" || c.Op == op {
			calls = append(calls, *c)
		}
	}
	return calls
}

// ResetCalls empties the journal. What pods have been through is remembered.
func (b *Backend) ResetCalls() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = nil
}
