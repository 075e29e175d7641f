// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

// The reasons of events, and of the status of pods that this package ends.
const (
	// ReasonFailedStart: Start returned an error.
	ReasonFailedStart = "FailedStart"
	// ReasonFailedUpdate: Update returned an error.
	ReasonFailedUpdate = "FailedUpdate"
	// ReasonFailedStop: Stop returned an error.
	ReasonFailedStop = "FailedStop"
	// ReasonFailedAdmit: Admit returned an error that is no rejection.
	ReasonFailedAdmit = "FailedAdmit"
	// ReasonFailedRelease: Release returned an error.
	ReasonFailedRelease = "FailedRelease"
	// ReasonLost: the provider does not hold a pod any more that had started.
	ReasonLost = "Lost"
	// ReasonEvicted is the reason of an [Eviction] without one.
	ReasonEvicted = "Evicted"
	// ReasonDeadlineExceeded: spec.activeDeadlineSeconds is over. It is the
	// kubelet's word, which the Job controller knows.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonInvalidStatus: the provider's status can't be stored as it is.
	ReasonInvalidStatus = "InvalidStatus"
	// ReasonOrphanRemoved: an instance without a pod is being stopped.
	ReasonOrphanRemoved = "OrphanRemoved"
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
