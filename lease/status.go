// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"time"

	"github.com/kubewright/kubewright/lease/internal/plan"
)

// Status is the state of the lease of one node.
type Status struct {
	// Phase is the phase.
	Phase Phase
	// LastRenewal is when the last write that the API server accepted was sent, on
	// the clock of this process; zero if it never accepted one.
	LastRenewal time.Time
	// Expires is when the lease expires, or did, if it is not renewed: Duration
	// after LastRenewal. Zero if LastRenewal is.
	Expires time.Time
	// Failures is the number of turns that failed in a row.
	Failures int
	// LastError is the last of these failures, or nil.
	LastError error
	// Holder is the holder identity of the lease in PhaseForeign; else empty. It
	// may be the one that this Controller uses.
	Holder string
	// Process is the Config.Process of the process that holds the lease in
	// PhaseForeign, if that process uses this package; else empty. If it has the
	// same default as this one, a slash and a random number of its start follow.
	Process string
	// Contended reports that another client keeps writing the lease.
	Contended bool
	// Overloaded reports that the visits of this Controller start more than
	// RenewInterval late; see Hooks.Overloaded. It is the same for all nodes.
	Overloaded bool
}

// Holds returns nil while this process holds the lease of the node, and an error
// that wraps [ErrNotHeld] and says why if it does not. It is the answer to the
// question whether this process may act for the node: with the method as the Gate
// of nodestatus and podsync, of two processes that serve one node one acts and
// the other waits.
//
// A lease is held from the moment its first write was accepted until Duration, less
// a twentieth of it, after its last accepted write was sent, on the monotonic clock
// of this process. A process that was frozen, or cut off from the API server, so
// notices without a request that another one may have taken its place. If the wall
// clock has moved on by more than that, as after a suspended machine resumes, the
// lease does not count as held either until it is renewed.
//
// Another process gets the lease no sooner, provided that it uses this package, and that
// both leave Config.Process at its default or set it to different values. A process with
// the same value that was set is taken for a restart: it gets the lease at once, and Holds
// says so at the next renewal only. If another client deletes the lease, a process that
// starts after that gets it at once, too. While the lease is contended it is not held.
//
// Holds never blocks and makes no request.
func (c *Controller) Holds(_ context.Context, nodeName string) error {
	n, ok := c.served(nodeName)
	if !ok {
		return &NotHeldError{NodeName: nodeName, Err: errNotServed}
	}
	if c.hasStopped() {
		return &NotHeldError{NodeName: nodeName, Err: ErrStopped}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.lease.Holds(&c.rules, c.now())
	if err == nil {
		return nil
	}
	by := n.lease.HeldBy()
	return &NotHeldError{NodeName: nodeName, Holder: by.Holder, Process: by.Process, Err: err}
}

// Status returns the state of the lease of a node, and false if the controller does
// not manage that node. It may be called at any time from any goroutine.
func (c *Controller) Status(nodeName string) (Status, bool) {
	n, ok := c.served(nodeName)
	if !ok {
		return Status{}, false
	}
	_, overloaded := c.nodes.Overloaded()
	n.mu.Lock()
	defer n.mu.Unlock()
	by := n.lease.HeldBy()
	status := Status{
		Phase: Phase(n.lease.Phase()), Holder: by.Holder, Process: by.Process,
		Contended: n.lease.Contended(), Overloaded: overloaded,
	}
	status.Failures, status.LastError = n.lease.Failures()
	if renewed := n.lease.Renewed(); renewed != plan.Never {
		status.LastRenewal = c.epoch.Add(renewed)
		status.Expires = status.LastRenewal.Add(c.cfg.Duration)
	}
	if c.hasStopped() {
		status.Phase = PhaseStopped
	}
	return status, true
}
