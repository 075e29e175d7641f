// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"time"
)

// Hooks are called on events. Each is optional. They are called synchronously
// and without locks by a goroutine of Run, one at a time for each node, and must
// not block. They may call every method of the Controller.
type Hooks struct {
	// Renewed is called after each write that the API server accepted.
	Renewed func(Renewed)
	// Failed is called after each turn that ended with an error.
	Failed func(Failed)
	// Recovered is called after a renewal that came so late that the lease had
	// expired, whatever the cause, but on the monotonic clock: that of a machine
	// that was suspended stood still. kube-controller-manager may have made the
	// node Unknown in the meantime; no number of renewals undoes that, only a write
	// of the node's status does.
	Recovered func(Recovered)
	// PhaseChanged is called when a node enters another [Phase]. A node begins in
	// PhasePending, for which the hook is not called, and ends in PhaseStopped, for
	// which it is called once: after the node was removed while Run ran, or when
	// Run ends.
	PhaseChanged func(PhaseChanged)
	// Deleted is called when a lease that was held turns out to be gone. If
	// the garbage collector did it, the Node is gone as well, which the program
	// may not have noticed yet. Afterwards Owner is asked again.
	Deleted func(Deleted)
	// Contended is called when another client has written the lease three times
	// within its duration: usually a second process for the same node. It is called
	// again only after a quiet time of one duration.
	Contended func(Contended)
	// TakenOver is called after a lease was taken over from another process.
	TakenOver func(TakenOver)
	// Overloaded is called when visits of nodes begin to start more than
	// RenewInterval after they were due, because all workers are busy, and when they
	// start in time again. It is about all nodes, and called by the goroutine that
	// starts visits.
	Overloaded func(Overloaded)
}

// Renewed is the argument of Hooks.Renewed.
type Renewed struct {
	// NodeName is the node.
	NodeName string
	// Latency is the duration of the call.
	Latency time.Duration
	// Created says that the lease did not exist.
	Created bool
}

// Failed is the argument of Hooks.Failed.
type Failed struct {
	// NodeName is the node.
	NodeName string
	// Class is a short constant name of the kind of failure, fit for a label
	// of a metric: Timeout, Unreachable, Forbidden, Throttled, Server …
	Class string
	// Err is the error.
	Err error
	// Failures is the number of turns that failed in a row, with this one.
	Failures int
}

// Recovered is the argument of Hooks.Recovered.
type Recovered struct {
	// NodeName is the node.
	NodeName string
	// Outage is the time between the two renewals.
	Outage time.Duration
}

// PhaseChanged is the argument of Hooks.PhaseChanged.
type PhaseChanged struct {
	// NodeName is the node.
	NodeName string
	// From and To are the phases before and after.
	From, To Phase
	// Holder is the holder identity of the lease, in PhaseForeign only. It may be
	// the one that this Controller uses.
	Holder string
	// Process is the Config.Process of the process that holds the lease, in
	// PhaseForeign only, and only if that process uses this package.
	Process string
	// Reason is the error of Gate or Owner, in PhaseGateClosed and PhaseNoOwner only.
	Reason error
}

// Deleted is the argument of Hooks.Deleted.
type Deleted struct {
	// NodeName is the node.
	NodeName string
}

// Contended is the argument of Hooks.Contended.
type Contended struct {
	// NodeName is the node.
	NodeName string
	// Holder is the identity that the other writer uses. It may be ours.
	Holder string
	// Process is the Config.Process of the other writer, if it uses this
	// package and another holder identity.
	Process string
}

// TakenOver is the argument of Hooks.TakenOver.
type TakenOver struct {
	// NodeName is the node.
	NodeName string
	// Holder is the holder identity that the lease had before. It may be ours.
	Holder string
	// Process is the Config.Process of the process that held it, if that
	// process uses this package.
	Process string
}

// Overloaded is the argument of Hooks.Overloaded.
type Overloaded struct {
	// Nodes is the number of nodes; each must be visited once every RenewInterval.
	Nodes         int
	RenewInterval time.Duration
	// Workers is the number of nodes that are visited at once, and Visit the average
	// duration of the last visits.
	Workers int
	Visit   time.Duration
	// Late is the time by which a visit started late.
	Late time.Duration
	// Ended says that visits start in time again.
	Ended bool
}

// String returns the arithmetic.
func (o Overloaded) String() string {
	return fmt.Sprintf("Node leases are visited late: %d nodes every %v need %.0f visits a second, and %d workers with %v a visit make %.0f: raise Workers or the client's rate limit, or find out why the API server, Gate or Owner is slow",
		o.Nodes, o.RenewInterval, float64(o.Nodes)/o.RenewInterval.Seconds(), o.Workers, o.Visit.Round(time.Millisecond), float64(o.Workers)/max(o.Visit.Seconds(), 1e-9))
}
