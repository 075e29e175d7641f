// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

// The reasons of the status of pods that this package ends, or can't start, and
// of the events about that.
const (
	// ReasonFailedStart: Start returned an error. The pod is Pending.
	ReasonFailedStart = "FailedStart"
	// ReasonLost: the provider does not hold a pod any more that had started.
	ReasonLost = "Lost"
	// ReasonEvicted is the reason of an [Eviction] without one.
	ReasonEvicted = "Evicted"
	// ReasonDeadlineExceeded: spec.activeDeadlineSeconds is over. It is the
	// kubelet's word, which the Job controller knows.
	ReasonDeadlineExceeded = "DeadlineExceeded"
)

// The reasons of events besides; see the package comment.
const (
	reasonFailedUpdate  = "FailedUpdate"
	reasonFailedStop    = "FailedStop"
	reasonFailedAdmit   = "FailedAdmit"
	reasonFailedRelease = "FailedRelease"
	reasonInvalidStatus = "InvalidStatus"
	reasonOrphanRemoved = "OrphanRemoved"
)

// The actions of events, which say what the controller did then.
const (
	actionStart   = "Starting"
	actionUpdate  = "Updating"
	actionStop    = "Stopping"
	actionAdmit   = "Admitting"
	actionRelease = "Releasing"
	actionSync    = "SyncingStatus"
)

const (
	messageLost     = "the provider does not hold the pod any more"
	messageDeadline = "the pod was active for longer than spec.activeDeadlineSeconds"
)
