// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"time"

	"github.com/kubewright/kubewright/internal/enum"
)

// Hooks observe the Controller. Each is optional. They are called synchronously and
// without locks by goroutines of Run, several at a time, and must not block. They
// may call every method of the Controller.
type Hooks struct {
	// ProviderCall is called after each call of the provider has returned.
	ProviderCall func(ProviderCall)
	// APICall is called after each API request about one pod, and after each LIST and each
	// start of a WATCH of the Controller's own informer: OpList and OpWatch.
	APICall func(APICall)
	// StatusStored is called when the API has stored a provider's report.
	StatusStored func(StatusStored)
	// StageChanged is called when a pod changes stage.
	StageChanged func(StageChanged)
	// Dropped is called when a report, a status field or an instance is ignored.
	Dropped func(Dropped)
	// MassOrphans is called with each List while it leaves out so many pods that they are
	// not taken for lost, and each minute while so many pods are gone from the
	// API that their instances are held back, and once without any when that is
	// over: the pods are back, the instances are gone, or [Policy.MassHold] is
	// over and they are being stopped.
	MassOrphans func(MassOrphans)
}

// An Op names a call, in a word that is fit for a label of a metric.
type Op string

// The calls of the provider, which are its methods. OpList and OpWatch are also the requests
// of the Controller's own informer.
const (
	OpAdmit    Op = "admit"
	OpAnnotate Op = "annotate"
	OpStart    Op = "start"
	OpUpdate   Op = "update"
	OpStop     Op = "stop"
	OpRelease  Op = "release"
	OpInspect  Op = "inspect"
	OpList     Op = "list"
	OpWatch    Op = "watch"
	OpSave     Op = "save"   // Save of Config.Checkpoint; that of a pod that starts is part of OpStart
	OpRemove   Op = "remove" // Remove of Config.Checkpoint
)

// The requests to the API.
const (
	OpPatch  Op = "patch"  // PATCH of a pod's status
	OpDelete Op = "delete" // DELETE of a pod
	OpGet    Op = "get"    // GET of a pod
)

// ProviderCall is the argument of Hooks.ProviderCall.
type ProviderCall struct {
	// Op is the method.
	Op Op
	// Ref is the pod; zero for OpList and OpWatch.
	Ref Ref
	// Latency is the duration of the call.
	Latency time.Duration
	// Err is the error that the method returned.
	Err error
}

// APICall is the argument of Hooks.APICall.
type APICall struct {
	// Op is the request.
	Op Op
	// Ref is the pod; zero for OpList and OpWatch.
	Ref Ref
	// Latency is the duration of the request.
	Latency time.Duration
	// Err is the error of the request, nil for a success.
	Err error
}

// StatusStored is the argument of Hooks.StatusStored.
type StatusStored struct {
	// Ref is the pod.
	Ref Ref
	// Lag is the time from the provider's report to the answer of the API.
	Lag time.Duration
}

// StageChanged is the argument of Hooks.StageChanged.
type StageChanged struct {
	// Ref is the pod.
	Ref Ref
	// From and To are the stages before and after. Every pod begins in
	// StageUnsynced, for which the hook is not called.
	From, To Stage
	// Forgotten says that To is the pod's last stage, and that the Controller has
	// forgotten the pod. From and To are equal then.
	Forgotten bool
}

// Dropped is the argument of Hooks.Dropped.
type Dropped struct {
	// Ref is the pod; it may lack the UID, see DroppedAmbiguous.
	Ref Ref
	// Reason is one of the Dropped… constants.
	Reason string
	// Err has details, if there are any.
	Err error
}

// The values of Dropped.Reason.
const (
	// DroppedInvalid: the API refuses the status that the provider reported.
	// It is not sent again until it changes.
	DroppedInvalid = "InvalidStatus"
	// DroppedTransition: a container that had ended for good was reported as
	// anything else; its former status was kept.
	DroppedTransition = "IllegalTransition"
	// DroppedAmbiguous: a State had no UID, and its name fits two pods, or one that
	// had not started, or, in a List, none.
	DroppedAmbiguous = "AmbiguousName"
	// DroppedUnknown: a report named a pod that did not appear in time.
	DroppedUnknown = "UnknownPod"
	// DroppedAfterStop: a pod was reported as running after it was reported as
	// stopped.
	DroppedAfterStop = "ReportAfterStop"
	// DroppedRefused: a pod of the informer is not taken, because it has no UID or
	// because Config.Owns panicked.
	DroppedRefused = "RefusedPod"
	// DroppedOrphan: an instance was left alone because the API has its pod,
	// although this Controller does not see it there.
	DroppedOrphan = "OrphanKept"
	// DroppedUnconfirmed: an instance was left alone because the credentials of
	// the client can't see whether its pod exists. See State.NodeName and
	// Policy.ExclusiveBackend.
	DroppedUnconfirmed = "OrphanUnconfirmed"
)

// MassOrphans is the argument of Hooks.MassOrphans.
type MassOrphans struct {
	// Refs are the instances that are held back. The API has confirmed that
	// their pods are gone. Empty means that none is held back any longer.
	Refs []Ref
	// Held is the number of all pods that the provider holds, or, if Lost is set, that it
	// should hold.
	Held int
	// Lost says that it is the other way round: Refs are pods that the API has, that had
	// started, and that the provider's List leaves out.
	Lost bool
}

// A Stage is a stage of a pod between its binding to the node and the moment at which
// the Controller forgets it.
type Stage int

// The stages in their order; StageOrphaned stands apart. A pod goes back only in these cases:
//
//   - From Running to Starting: the provider has lost it, and [Policy.Lost] lets it start again.
//   - From Stopped or later to Terminating: the provider broke its promise and runs it again. An
//     orphan about which the API has not been asked goes back to Orphaned.
//   - From Final or later to Stopped: another client has undone the end in the API, or the API has
//     the pod again, for example because it was restored from a backup.
//   - From Final to Waiting: the API has the pod again, and nothing of it was started.
//   - From Released to Final: a pod that had stayed as completed is deleted.
//   - From any stage to Unsynced: [Config.Gate] is closed. It is Orphaned if the informer never
//     showed the pod.
const (
	// StageUnsynced: the provider has not yet said whether it holds the pod.
	// Nothing is called and nothing written.
	StageUnsynced Stage = iota
	// StageWaiting: the pod may not start yet: another pod of its name has not
	// stopped, it has not been admitted, or there was no free call.
	StageWaiting
	// StageStarting: Start was called and has not succeeded yet.
	StageStarting
	// StageRunning: Start has succeeded, or the provider listed the pod.
	StageRunning
	// StageTerminating: the pod is being stopped.
	StageTerminating
	// StageStopped: nothing of the pod runs.
	StageStopped
	// StageFinal: the API has the final status, or the object is gone.
	StageFinal
	// StageReleased: the DELETE was sent, or the pod stays in the API as completed.
	StageReleased
	// StageOrphaned: the provider holds an instance of a pod that the informer
	// does not show, and the API has not confirmed that the pod is gone. It is
	// left alone. If it must be stopped, StageTerminating follows.
	StageOrphaned
)

// String returns the name of the stage, fit for a label of a metric.
func (s Stage) String() string {
	return enum.Name(s, "Unsynced", "Waiting", "Starting", "Running", "Terminating", "Stopped", "Final", "Released", "Orphaned")
}
