// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/kubewright/kubewright/internal/enum"

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
	// PhaseGateClosed: Gate does not let it be renewed.
	PhaseGateClosed
	// PhaseNoOwner: the Node does not exist.
	PhaseNoOwner
	// PhaseStopped: the node is no longer managed, or Run has returned.
	PhaseStopped
)

// String returns the name of the phase, fit for a label of a metric.
func (p Phase) String() string {
	return enum.Name(p, "Pending", "Held", "Foreign", "GateClosed", "NoOwner", "Stopped")
}
