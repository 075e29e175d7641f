// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"time"

	"github.com/kubewright/kubewright/internal/enum"
)

// A Phase says how the lease of a node stands.
type Phase int

const (
	// PhasePending: nothing is known yet, or it is to be found out again.
	PhasePending Phase = iota
	// PhaseHeld: the last write was accepted. Whether the lease has expired
	// since, because renewals fail, Status.Expires says.
	PhaseHeld
	// PhaseForeign: somebody else holds it.
	PhaseForeign
	// PhasePaused: Gate does not let it be renewed.
	PhasePaused
	// PhaseNoOwner: the Node does not exist.
	PhaseNoOwner
	// PhaseStopped: the node is no longer served, or Run has returned.
	PhaseStopped
)

// String returns the name of the phase, fit for a label of a metric.
func (p Phase) String() string {
	return enum.Name(p, "Pending", "Held", "Foreign", "Paused", "NoOwner", "Stopped")
}

// Status is how the lease of one node stands.
type Status struct {
	// Phase is the phase.
	Phase Phase
	// LastRenewal is when the API server last accepted a write, on the clock of
	// this process; zero when it never has.
	LastRenewal time.Time
	// Expires is when the lease expires, or did, if it is not renewed: Duration
	// after LastRenewal. Zero where that is.
	Expires time.Time
	// Failures is the number of turns that failed in a row.
	Failures int
	// LastError is the last of these failures, nil where there are none.
	LastError error
	// Holder is who holds the lease in PhaseForeign; else empty.
	Holder string
	// Contended says that somebody else keeps writing the lease.
	Contended bool
}

// Status returns how the lease of a node stands, and false where the controller
// does not serve that node. It may be called at any time by anybody.
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
			status.Holder = t.foreign.holder
		}
	}
	if c.hasStopped() {
		status.Phase = PhaseStopped
	}
	return status, true
}
