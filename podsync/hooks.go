// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import "time"

// Hooks are told what happens. Each is optional. They are called synchronously
// and without locks, from several goroutines at a time, and must not block; they
// may call every method of the Controller.
type Hooks struct {
	// ProviderCall is called after each call of the provider has returned.
	ProviderCall func(ProviderCall)
	// APICall is called after each API request about one pod.
	APICall func(APICall)
	// StatusStored is called when the API has stored what a provider reported.
	StatusStored func(StatusStored)
	// StageChanged is called when a pod has come to another stage.
	StageChanged func(StageChanged)
	// Dropped is called when something was not done that somebody may expect.
	Dropped func(Dropped)
	// MassOrphans is called in each pass in which so many orphans were found
	// that none is removed; see [Policy.AllowMassOrphans].
	MassOrphans func(MassOrphans)
}

// An Op names a call.
type Op string

// The calls of the provider, then those of the API.
const (
	OpAdmit   Op = "admit"
	OpStart   Op = "start"
	OpUpdate  Op = "update"
	OpStop    Op = "stop"
	OpRelease Op = "release"
	OpInspect Op = "inspect"
	OpList    Op = "list"
	OpWatch   Op = "watch"

	OpPatch  Op = "patch"
	OpDelete Op = "delete"
	OpGet    Op = "get"
)

// ProviderCall describes a call of the provider.
type ProviderCall struct {
	Op       Op
	Ref      Ref // zero for OpList and OpWatch
	Duration time.Duration
	Err      error
}

// APICall describes a request.
type APICall struct {
	Op       Op
	Ref      Ref
	Duration time.Duration
	Err      error
}

// StatusStored says how long the newest report took to reach the API.
type StatusStored struct {
	Ref Ref
	Lag time.Duration
}

// StageChanged describes a step of a pod.
type StageChanged struct {
	Ref      Ref
	From, To Stage
	// Forgotten says that To is the last stage of the pod and that nothing is
	// kept of it any more. From and To are equal then.
	Forgotten bool
}

// Dropped says that something was left out.
type Dropped struct {
	Ref Ref
	// Why is one of the Dropped… constants.
	Why string
	// Err has details, if there are any.
	Err error
}

// The values of Dropped.Why.
const (
	// DroppedInvalid: the API refuses the status that the provider reported.
	// It is not sent again until it changes.
	DroppedInvalid = "InvalidStatus"
	// DroppedTransition: a container that had ended for good was reported as
	// anything else; its former status was kept.
	DroppedTransition = "IllegalTransition"
	// DroppedAmbiguous: a State had no UID and its name fits no pod, or two.
	DroppedAmbiguous = "AmbiguousName"
	// DroppedUnknown: a report named a pod that did not appear in time.
	DroppedUnknown = "UnknownPod"
	// DroppedAfterStop: a pod was reported as running after it was reported as
	// stopped.
	DroppedAfterStop = "ReportAfterStop"
	// DroppedOrphan: an instance was left alone because the API has its pod,
	// although this Controller does not see it there.
	DroppedOrphan = "OrphanKept"
)

// MassOrphans describes a pass in which too many orphans were found.
type MassOrphans struct {
	// Refs are the orphans; the API has confirmed that their pods are gone.
	Refs []Ref
	// Held is how many pods the provider holds in all.
	Held int
}
