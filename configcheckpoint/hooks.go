// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// Hooks observe a Controller. Every field may be nil. Run calls them one after
// the other from its own goroutine, without holding a lock, also for what
// happened in Boot and Verdict; they must not block.
type Hooks struct {
	// Booted is called once, with what Boot chose.
	Booted func(BootedInfo)
	// Delivered is called for everything the source yields.
	Delivered func(DeliveredInfo)
	// Staged is called when a new configuration has been stored and assigned.
	Staged func(StagedInfo)
	// Promoted is called when a configuration has passed its trial.
	Promoted func(PromotedInfo)
	// Rejected is called when a configuration is barred: at the door, or after
	// it ran.
	Rejected func(RejectedInfo)
	// StatusChanged is called with the status whenever it has changed. It is
	// the place to have the Node's status written.
	StatusChanged func(Status)
}

// BootedInfo says what Boot chose.
type BootedInfo struct {
	Ref   Ref
	Role  Role
	Trial bool
}

// DeliveredInfo says what the source yielded: a payload or an error. Ref is
// zero for an error, and for a payload that assigns nothing.
type DeliveredInfo struct {
	Ref Ref
	Err error
}

// StagedInfo says what was assigned. Ref is zero where nothing is.
type StagedInfo struct {
	Ref Ref
	// Proven: it is the last-known-good configuration, so no trial follows.
	Proven bool
}

// PromotedInfo says what has passed its trial.
type PromotedInfo struct {
	Ref Ref
	// ByVerdict: it was promoted by Verdict(nil) rather than by its soak.
	ByVerdict bool
}

// RejectedInfo says what was barred and why.
type RejectedInfo struct {
	Ref     Ref
	Reason  Reason
	Message string
	// RolledBack: it was assigned, so another configuration takes its place.
	RolledBack bool
}

// The reasons and actions of the events, as listed in the package comment.
const (
	eventStaged     = "ConfigStaged"
	eventPromoted   = "ConfigPromoted"
	eventRejected   = "ConfigRejected"
	eventRolledBack = "ConfigRolledBack"

	actionStage    = "Stage"
	actionPromote  = "Promote"
	actionReject   = "Reject"
	actionRollBack = "RollBack"
)

// An observer hands what happened to the hooks and the event recorder.
type observer struct {
	hooks    Hooks
	recorder events.EventRecorder
	object   runtime.Object
}

// event records an event where a recorder is set. The note is handed over as
// an argument: a message of the embedder may contain a percent sign.
func (o observer) event(eventType, reason, action, note string) {
	if o.recorder != nil {
		o.recorder.Eventf(o.object, nil, eventType, reason, action, "%s", note)
	}
}

func (o observer) booted(i BootedInfo) {
	if o.hooks.Booted != nil {
		o.hooks.Booted(i)
	}
}

func (o observer) delivered(i DeliveredInfo) {
	if o.hooks.Delivered != nil {
		o.hooks.Delivered(i)
	}
}

func (o observer) staged(i StagedInfo) {
	if o.hooks.Staged != nil {
		o.hooks.Staged(i)
	}
	o.event(corev1.EventTypeNormal, eventStaged, actionStage, "Assigned "+i.Ref.String())
}

func (o observer) promoted(i PromotedInfo) {
	if o.hooks.Promoted != nil {
		o.hooks.Promoted(i)
	}
	o.event(corev1.EventTypeNormal, eventPromoted, actionPromote, i.Ref.String()+" passed its trial")
}

func (o observer) rejected(i RejectedInfo) {
	if o.hooks.Rejected != nil {
		o.hooks.Rejected(i)
	}
	note := i.Ref.String() + ": " + string(i.Reason) + ": " + i.Message
	if i.RolledBack {
		o.event(corev1.EventTypeWarning, eventRolledBack, actionRollBack, note)
		return
	}
	o.event(corev1.EventTypeWarning, eventRejected, actionReject, note)
}

func (o observer) statusChanged(s Status) {
	if o.hooks.StatusChanged != nil {
		o.hooks.StatusChanged(s)
	}
}
