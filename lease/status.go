// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"time"

	"github.com/kubewright/kubewright/internal/enum"
)

// A Phase is the state of the lease of a node.
type Phase int

const (
	// PhasePending: nothing is known yet, or must be found out again.
	PhasePending Phase = iota
	// PhaseHeld: the last write was accepted. Whether the lease has expired
	// since, because renewals fail, Status.Expires says.
	PhaseHeld
	// PhaseForeign: another process holds it.
	PhaseForeign
	// PhasePaused: Gate does not let it be renewed.
	PhasePaused
	// PhaseNoOwner: the Node does not exist.
	PhaseNoOwner
	// PhaseStopped: the node is no longer managed, or Run has returned.
	PhaseStopped
)

// String returns the name of the phase, fit for a label of a metric.
func (p Phase) String() string {
	return enum.Name(p, "Pending", "Held", "Foreign", "Paused", "NoOwner", "Stopped")
}

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
	// PhaseForeign, if that process uses this package; else empty.
	Process string
	// Contended reports that another client keeps writing the lease.
	Contended bool
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
// Another process gets the lease no sooner, provided that it waits
// (ForeignWaitExpired) and has another Config.Process. A process with the same one
// is taken for a restart: it gets the lease at once, and Holds says so at the next
// renewal only. While the lease is contended it is not held.
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
	err := n.holds(&c.rules, c.now())
	if err == nil {
		return nil
	}
	held := &NotHeldError{NodeName: nodeName, Err: err}
	if n.phase == PhaseForeign {
		held.Holder, held.Process = n.trouble.foreign.holder, n.trouble.foreign.process
	}
	return held
}

// Status returns the state of the lease of a node, and false if the controller does
// not manage that node. It may be called at any time from any goroutine.
func (c *Controller) Status(nodeName string) (Status, bool) {
	n, ok := c.served(nodeName)
	if !ok {
		return Status{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	status := Status{Phase: n.phase}
	if n.renewed > never {
		status.LastRenewal = c.epoch.Add(n.renewed)
		status.Expires = status.LastRenewal.Add(c.cfg.Duration)
	}
	if t := n.trouble; t != nil {
		status.Failures, status.LastError, status.Contended = t.failures, t.err, t.contended
		if n.phase == PhaseForeign {
			status.Holder, status.Process = t.foreign.holder, t.foreign.process
		}
	}
	if c.hasStopped() {
		status.Phase = PhaseStopped
	}
	return status, true
}
