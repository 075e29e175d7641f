// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// The reasons and actions of the events, as listed in docs/operations.md.
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

// WithEvents returns hooks that call those given, and record the events listed in
// docs/operations.md. The kubelet recorded such events when it could take its configuration
// from a ConfigMap. The events are about object, usually the Node, which must not be nil.
// If recorder is nil, WithEvents returns hooks.
func WithEvents(hooks configcheckpoint.Hooks, recorder events.EventRecorder, object runtime.Object) configcheckpoint.Hooks {
	if recorder == nil {
		return hooks
	}
	// The note is passed as an argument, because a message of the program may contain a
	// percent sign.
	event := func(eventType, reason, action, note string) {
		recorder.Eventf(object, nil, eventType, reason, action, "%s", note)
	}
	inner := hooks
	hooks.Staged = func(i configcheckpoint.Staged) {
		if inner.Staged != nil {
			inner.Staged(i)
		}
		event(corev1.EventTypeNormal, eventStaged, actionStage, "Assigned "+i.Ref.String())
	}
	hooks.Promoted = func(i configcheckpoint.Promoted) {
		if inner.Promoted != nil {
			inner.Promoted(i)
		}
		event(corev1.EventTypeNormal, eventPromoted, actionPromote, i.Ref.String()+" passed its trial")
	}
	hooks.Rejected = func(i configcheckpoint.Rejected) {
		if inner.Rejected != nil {
			inner.Rejected(i)
		}
		note := i.Ref.String() + ": " + string(i.Reason) + ": " + i.Message
		if i.RolledBack {
			event(corev1.EventTypeWarning, eventRolledBack, actionRollBack, note)
			return
		}
		event(corev1.EventTypeWarning, eventRejected, actionReject, note)
	}
	return hooks
}
