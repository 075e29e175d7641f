// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// An Instant is a time since the controller was made: eight bytes instead of
// twenty-four, for states of which there may be a hundred thousand. None is 0.
type Instant = time.Duration

// Never is later than every instant.
const Never Instant = 1<<63 - 1

// A Moment is an instant and the wall clock then, which may be set at any time.
type Moment struct {
	Since Instant   // by which delays are measured
	Wall  time.Time // by which the API has its times
}

// Horizon limits durations to 73 years, so that the sum of an instant and two of
// them does not overflow.
const Horizon time.Duration = 1 << 61

// Rules are the configuration on which decisions about a pod depend.
type Rules struct {
	Relist       time.Duration  // the time between two Lists
	PendingAfter time.Duration  // how long a status without news waits for the next one
	Retry        backoff.Policy // of calls and requests

	Lost           LostPolicy    // what becomes of a lost pod
	OrphanDelay    time.Duration // how long an instance must be without a pod before the API is asked
	MassHold       time.Duration // how long many suspects are held; negative: without end
	CompleteList   bool          // a List is never a mistake
	UpdateMetadata bool          // labels and annotations are part of what Update is called for
	TrustPhase     bool          // the phase of a report counts

	Updates, Releases, Admits, Inspects, Annotates bool // capabilities of the provider

	Checkpoints bool // accepted pods are saved
	Gated       bool // there is a gate
}

// A LostPolicy decides about pods that the provider has lost.
type LostPolicy int

// The policies.
const (
	LostByRestartPolicy LostPolicy = iota
	LostFail
	LostRestart
)

// An Op names a call of the provider or a request to the API; "": none. A new call is needed in
// wantedCall, callStarted, callSucceeded and inTheWay (a call that is not there holds up Stop), and
// in queueOf and resultOf of the driver.
type Op string

// The calls of the provider.
const (
	Admit    Op = "admit"
	Annotate Op = "annotate"
	Start    Op = "start"
	Update   Op = "update"
	Stop     Op = "stop"
	Release  Op = "release"
	Inspect  Op = "inspect"
	Save     Op = "save"
	Remove   Op = "remove"
)

// The requests to the API.
const (
	Patch  Op = "patch"
	Delete Op = "delete"
	Get    Op = "get"
)

// A Lane is what a pod has at most one call or request under way in.
type Lane int

// The lanes.
const (
	Calls  Lane = iota // of the provider
	Writes             // requests to the API
)

// An Action is the next step of one lane of a pod.
type Action struct {
	Op     Op            // "": nothing, until Wake or an event
	Grace  time.Duration // of Stop
	Cancel bool          // the call under way is in the way
	Urgent bool          // other requests should wait for it
	Wake   Instant       // when to ask again; Never: only after an event
}

// A Stage is a stage of a pod between its binding to the node and the moment at which
// it is forgotten.
type Stage uint8

// The stages.
const (
	Unsynced Stage = iota
	Waiting
	Starting
	Running
	Terminating
	Stopped
	Final
	Released
	Orphaned
)

// A StopReason is a reason to stop a pod.
type StopReason string

// The reasons.
const (
	StopDeleted   StopReason = "Deleted"
	StopCompleted StopReason = "Completed"
	StopEvicted   StopReason = "Evicted"
	StopDeadline  StopReason = "DeadlineExceeded"
	StopRejected  StopReason = "Rejected"
	StopLost      StopReason = "Lost"
	StopOrphaned  StopReason = "Orphaned"
)

// A Report is what the provider says of a pod: a podsync.State without its Ref.
type Report struct {
	Stopped     bool              // nothing runs, and nothing will
	Generation  int64             // of the spec in force; 0: of the one last handed over
	Status      corev1.PodStatus  // without opinion where it is zero
	Annotations map[string]string // to be merged into those of the pod
	Delete      bool              // the pod must be deleted when it has ended
}

// A Rejection is an answer that will not change.
type Rejection struct {
	Reason  string // in CamelCase
	Message string // for people
}

// The reasons why a report is dropped.
const (
	DroppedAfterStop = "ReportAfterStop"
)

// The reasons and messages of statuses.
const (
	ReasonFailedStart      = "FailedStart"
	ReasonNameTaken        = "NameTaken"
	ReasonLost             = "Lost"
	ReasonDeadlineExceeded = "DeadlineExceeded"

	MessageLost      = "the provider no longer holds the pod"
	MessageUnapplied = "the provider runs an older generation of the spec and can't change a running pod"
	MessageDeadline  = "the pod was active for longer than spec.activeDeadlineSeconds"
	messageRejected  = "Pod was rejected: " // and the message of the provider
)

const (
	// stopSlack is the time after the grace period at which Stop is called again if the
	// provider has not said that the pod has stopped.
	stopSlack = 2 * time.Second

	// goneAfter is the time after which the API is asked again about a pod that a request
	// did not find and the informer still has, and after which a DELETE is repeated.
	goneAfter = 30 * time.Second

	// writeInterval is the time between two writes of a pod's status, after a burst
	// of writeBurst. Final statuses and deletions do not wait.
	writeInterval = time.Second
	writeBurst    = 10

	// pinnedTries is the number of conflicts after which a change of the phase is written
	// without a resourceVersion, if the phase has not changed in between.
	pinnedTries = 3

	// repairsAtOnce is the number of times in a row that a status is repaired without delay.
	repairsAtOnce = 3

	// clockCheck is the longest time between two comparisons of a pod's deadline with the wall
	// clock, which may be set, and which goes on while the machine is suspended.
	clockCheck = 30 * time.Second
)

// UnansweredCap is the longest time between two requests of a pod while no answer comes. With
// the deadline of a request it bounds how much later than the lease, which is renewed every
// ten seconds, a pod recovers from a connection that drops everything.
const UnansweredCap = 10 * time.Second

// MinGrace is the shortest grace period that is passed on. It is the kubelet's.
const MinGrace = time.Second

// A Call is a call of the provider or a request to the API under way. Only the fields that
// its Op needs are set. The driver must not change it.
type Call struct {
	Op    Op          // what it is
	Since Instant     // when it began
	Pod   *corev1.Pod // the argument, which must not be changed; nil for an instance without a pod

	Grace     time.Duration // of Stop
	Reason    StopReason    // of Stop
	LostSince Instant       // of Save
	End       *End          // of Save: the pod ends; nil: it does not

	Annotations map[string]string // of Patch
	Base        *corev1.Pod       // of Patch: the pod from which the status is computed
	Update      podstatus.Update  // of Patch
	Status      *corev1.PodStatus // of Patch: what is sent, once it is
	Minimal     bool              // of Patch: the status must be podstatus.Minimal
	Pinned      bool              // of Patch: a change of the phase needs the version of Pod; of Delete: it needs that version
	Over        bool              // of Patch: it stores the final status; of Stop: the pod had stopped

	seq  uint64       // when it began, in the order of events
	want uint64       // of Patch: the statusSeq that it stores
	end  *termination // of Stop: why the pod ends
	fate fate
}
