// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/callback"
)

// patience is how long a worker waits for Gate and Owner. For an answer from memory that
// is long, and a thousand nodes whose answers take longer cost the workers 50 s, once.
const patience = 50 * time.Millisecond

// An asker calls Gate and Owner.
type asker struct {
	gate  GateFunc // may be nil
	live  GateFunc // of the Nodes that the lease follows; may be nil
	owner OwnerFunc
	room  callback.Room[answer]
}

// A memo is what an asker remembers of one node.
type memo = callback.Line[answer]

// An answer is what Gate and Owner said.
type answer struct {
	gate     error // why the gate is closed, or nil
	owner    metav1.OwnerReference
	ownerErr error
}

// ask returns the answer for a node. It reports false if there is none yet: then the
// node must be visited again after the returned time, or when the room triggers it.
// The context must live as long as Run.
func (a *asker) ask(ctx context.Context, nodeName string, m *memo) (answer, time.Duration, bool) {
	said, err, wait, ok := a.room.Visit(ctx, nodeName, m, func(ctx context.Context) (answer, error) { return a.call(ctx, nodeName), nil })
	if err != nil {
		said.gate = err
	}
	return said, wait, ok
}

// call calls Gate and, if that is open, Owner.
func (a *asker) call(ctx context.Context, nodeName string) (got answer) {
	for _, gate := range [...]GateFunc{a.gate, a.live} {
		if gate == nil {
			continue
		}
		if got.gate = callback.Contain("Gate", func() error { return gate(ctx, nodeName) }); got.gate != nil {
			return got
		}
	}
	got.owner, got.ownerErr = callback.Get("Owner", func() (metav1.OwnerReference, error) { return a.owner(ctx, nodeName) })
	return got
}
