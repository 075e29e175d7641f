// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Hooks are called on events. Each is optional. They are called synchronously
// and without locks by a goroutine of Run, one at a time for each node except for
// SpecChanged and SetterFailed, and must not block. They may call every method of the
// Controller. A panic in a hook is reported to ErrorHandler and has no other effect.
type Hooks struct {
	// Registered is called when the Node was created or adopted: at the start,
	// after it was deleted and registered again, and after it was replaced.
	Registered func(Registered)
	// Deleted is called when it turns out that another client deleted the Node.
	Deleted func(Deleted)
	// Replaced is called when it turns out that the Node is another object,
	// before it is adopted.
	Replaced func(Replaced)
	// Written is called after each status write that the API server accepted.
	Written func(Written)
	// Failed is called after each API call that failed, except for a creation after
	// which the Node was adopted, and for reads and deletions by OnShutdown.
	Failed func(Failed)
	// Recovered is called after the success that ends a run of failed calls.
	Recovered func(Recovered)
	// ConditionChanged is called when a condition that the controller owns has
	// another status, after the API server accepted it.
	ConditionChanged func(ConditionChanged)
	// SpecChanged is called when another client has changed the spec of the
	// Node, for example its pod CIDR, as soon as an answer or the event
	// handler shows it. A kubelet needs the pod CIDR for its container runtime:
	// containerd writes the configuration of the network from it. The hook may run at
	// the same time as another one of the same node.
	SpecChanged func(SpecChanged)
	// Rebooted is called if the Node of an earlier process has another boot ID than
	// the one that a setter sets, after the API server has accepted the new one. See
	// [HostInfo].
	Rebooted func(Rebooted)
	// Overloaded is called when rounds of setters and health checks begin to start more
	// than SyncInterval after they were due, because Workers can't do them all, and when
	// they start in time again. It is not about a node, and may run at the same time as
	// other hooks.
	Overloaded func(Overloaded)
	// SetterFailed is called for each setter and health check that failed or
	// was late, in each round. It may run at the same time as another hook of the
	// same node.
	SetterFailed func(SetterFailed)
}

// Registered is the argument of Hooks.Registered.
type Registered struct {
	// NodeName is the node.
	NodeName string
	// Node is the object as the API server returned it; the hook may keep it.
	Node *corev1.Node
	// Created is false if the object existed and was adopted.
	Created bool
}

// Deleted is the argument of Hooks.Deleted.
type Deleted struct {
	// NodeName is the node.
	NodeName string
	// UID is that of the object that is gone.
	UID types.UID
	// Policy is the policy that applies.
	Policy DeletedPolicy
}

// Replaced is the argument of Hooks.Replaced.
type Replaced struct {
	// NodeName is the node.
	NodeName string
	// OldUID is that of the object served so far, NewUID that of the one that
	// has its name now.
	OldUID, NewUID types.UID
}

// A Cause says why a status was written.
type Cause string

// The causes of status writes.
const (
	// CauseAdopt is the first write to an object that existed.
	CauseAdopt Cause = "Adopt"
	// CauseChange is a change of the values of setters and checks.
	CauseChange Cause = "Change"
	// CauseDrift is a write that undoes another client's.
	CauseDrift Cause = "Drift"
	// CauseReport is the report of an unchanged status.
	CauseReport Cause = "Report"
	// CauseResync is a full write after an outage or on request.
	CauseResync Cause = "Resync"
	// CauseShutdown is the last write of Run.
	CauseShutdown Cause = "Shutdown"
)

// Written is the argument of Hooks.Written.
type Written struct {
	// NodeName is the node.
	NodeName string
	// Cause is why it was written.
	Cause Cause
	// Bytes is the size of the patch.
	Bytes int
	// Latency is the duration of the call.
	Latency time.Duration
}

// Failed is the argument of Hooks.Failed.
type Failed struct {
	// NodeName is the node.
	NodeName string
	// Verb is create, get or patch.
	Verb string
	// Class is a short constant name of the kind of failure, fit for a label
	// of a metric: Timeout, Unreachable, Forbidden, Throttled, Server …
	Class string
	// Err is the error.
	Err error
	// Latency is the duration of the call.
	Latency time.Duration
}

// Recovered is the argument of Hooks.Recovered.
type Recovered struct {
	// NodeName is the node.
	NodeName string
	// Outage is the time since the first of the failures in a row.
	Outage time.Duration
}

// ConditionChanged is the argument of Hooks.ConditionChanged.
type ConditionChanged struct {
	// NodeName is the node.
	NodeName string
	// From is the status before, empty if the condition is new.
	From corev1.ConditionStatus
	// Condition is the condition as it was written.
	Condition corev1.NodeCondition
}

// SpecChanged is the argument of Hooks.SpecChanged.
type SpecChanged struct {
	// NodeName is the node.
	NodeName string
	// Node is the object as it is now; the hook may keep it.
	Node *corev1.Node
}

// Rebooted is the argument of Hooks.Rebooted.
type Rebooted struct {
	// NodeName is the node.
	NodeName string
	// OldBootID is the boot ID that the Node had, and NewBootID that of the machine.
	OldBootID, NewBootID string
}

// SetterFailed is the argument of Hooks.SetterFailed.
type SetterFailed struct {
	// NodeName is the node.
	NodeName string
	// Field is the setter or check as Config spells it, for example
	// "Setters[0]" or "HealthChecks[2]".
	Field string
	// Late is true if it did not return in time.
	Late bool
	// Err is the error.
	Err error
}

// Overloaded is the argument of Hooks.Overloaded. With more than Workers/Round rounds
// a second to do, which is Nodes/SyncInterval, some nodes wait for ever longer.
type Overloaded struct {
	// Nodes is the number of nodes, SyncInterval and Workers are those of Config.
	Nodes        int
	SyncInterval time.Duration
	Workers      int
	// Round is the average time for which a round holds a worker.
	Round time.Duration
	// Late is the time after it was due that a round began.
	Late time.Duration
	// Ended says that rounds begin in time again.
	Ended bool
}
