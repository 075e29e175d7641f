// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// An Event is a fact that Apply takes in. The types below are all there are. A field Seq is
// when it happened in the order of events, in which a later event of any pod has a larger
// number.
type Event interface{ event() }

// Events of the API.
type (
	// Seen: the informer has this version of the pod.
	Seen struct {
		Seq     uint64   // of the event
		Version *Version // belongs to the State from now on
	}
	// Vanished: the informer no longer has the pod.
	Vanished struct {
		Last       *Version // the last version; nil: not known
		Doubtful   bool     // a LIST left it out, which is not as certain as an event
		Restored   bool     // the API server was restored from a backup
		Superseded bool     // the API has another pod of its name: it counts if the informer has, or had, this one
	}
	// Recorded: the checkpoint has the pod, and the API can't be reached.
	Recorded struct {
		Pod *corev1.Pod // as it was saved
	}
)

// Events of the provider.
type (
	// Reported: the provider says what has become of the pod.
	Reported struct {
		Seq      uint64  // of the report, or of the beginning of the List that has it
		FromList bool    // a List has it
		Report   *Report // belongs to the State from now on
		FP       uint64  // the fingerprint of the report, not 0
		NodeName string  // the node that the instance was started for; "": not said
		Joined   bool    // as for the event Joined
	}
	// Repeated: the provider says what Repeats knows already. It is a pointer, so that a List
	// without news allocates nothing for each pod; Apply does not keep it.
	Repeated struct {
		Seq      uint64 // as of Reported
		FromList bool   // as of Reported
		NodeName string // as of Reported
	}
	// Joined: a List has been applied, and the gate is open, so a pod that was first seen
	// after that List may not need another one.
	Joined struct{}
	// ListEnded: a List was applied to all pods.
	ListEnded struct {
		Seq   uint64 // when it began
		Shown bool   // it has the pod
		First bool   // it is the first List of this process
		Open  bool   // the gate is open
	}
	// LossBelieved: the pod is lost, because there are not too many, or they have been for
	// MassHold.
	LossBelieved struct{}
	// LossQuestioned: the Inspector must be asked whether the pod is lost.
	LossQuestioned struct{}
)

// Events of the lanes. In each lane the end of a call or request follows its beginning.
type (
	// Called: the call of the provider that Next has returned begins.
	Called struct {
		Seq    uint64 // of the beginning
		Action Action // as Next has returned it
	}
	// Canceled: the context of the call was canceled, because Next has said that the call is in
	// the way.
	Canceled struct{}
	// NotMade: the call or request was not made.
	NotMade struct {
		Lane Lane // of the call or request
	}
	// Returned: the call of the provider has returned.
	Returned struct {
		Seq       uint64        // of the end
		Result    Result        // what Err means
		Report    *Report       // belongs to the State from now on; not nil
		FP        uint64        // its fingerprint
		Err       error         // unless Result is Succeeded
		Rejection Rejection     // if Result is Refused
		After     time.Duration // how long the provider wants to wait after a failure; 0: not said
		Saved     bool          // of Start: the checkpoint has the pod, or may have it unless Result is Succeeded
	}
	// RetryNow: what made calls or requests fail is over.
	RetryNow struct {
		Lane Lane // that need not wait
	}

	// Sent: the request to the API that Next has returned begins.
	Sent struct {
		Action Action // as Next has returned it
	}
	// Stored: the API has the status.
	Stored struct {
		Pod  *corev1.Pod // the answer; nil: the API had the status already, and nothing was sent
		Same bool        // the status of the answer is the one that was sent
	}
	// StatusRefused: the API calls the status invalid.
	StatusRefused struct{}
	// AnnotationsRefused: the API calls the annotations invalid.
	AnnotationsRefused struct{}
	// NotFound: the API has no such pod.
	NotFound struct{}
	// DeleteSent: the API has accepted the DELETE.
	DeleteSent struct {
		NotFound bool // or it has no such pod
	}
	// Conflicted: another client has written the pod since.
	Conflicted struct{}
	// Read: the API has answered a GET.
	Read struct {
		Seq uint64      // of the answer
		Pod *corev1.Pod // nil: there is no such pod
	}
	// WriteFailed: the request has failed in another way.
	WriteFailed struct {
		MayBeStored bool          // it may have had its effect
		Unanswered  bool          // no answer came
		After       time.Duration // how long the API server wants to wait; 0: not said
	}
)

// Other events.
type (
	// GateClosed: this process must not act for the pod's node. Another one may.
	GateClosed struct{}
	// GateOpened: this process may act again. Only a List that begins later than Seq counts.
	GateOpened struct {
		Seq uint64 // of the event
	}
	// Evicted: the node stops the pod.
	Evicted struct {
		Failure *podstatus.Failure // the reason and message of the status
		Grace   time.Duration      // the time that the pod has to end
	}
	// SuspectAnswered: the API was asked whether the pod of a suspect exists.
	SuspectAnswered struct {
		Answer Answer // what it said
	}
	// SuspectHeld: there are too many suspects to believe that the pod is gone.
	SuspectHeld struct{}
	// SuspectBelieved: the pod of the suspect is gone.
	SuspectBelieved struct{}
	// NameWanted: another pod waits for the name of an orphan.
	NameWanted struct{}
	// NameTaken: the pod waits for its name, which an orphan has that nothing may stop yet. It is
	// the error of a call that does not begin.
	NameTaken struct {
		Message string // says why, for people
	}
	// Passed: time has passed. Next must not be called at a later moment than the last one.
	Passed struct{}
)

func (Seen) event()               {}
func (Vanished) event()           {}
func (Recorded) event()           {}
func (Reported) event()           {}
func (*Repeated) event()          {}
func (Joined) event()             {}
func (ListEnded) event()          {}
func (LossBelieved) event()       {}
func (LossQuestioned) event()     {}
func (Called) event()             {}
func (Canceled) event()           {}
func (NotMade) event()            {}
func (Returned) event()           {}
func (RetryNow) event()           {}
func (Sent) event()               {}
func (Stored) event()             {}
func (StatusRefused) event()      {}
func (AnnotationsRefused) event() {}
func (NotFound) event()           {}
func (DeleteSent) event()         {}
func (Conflicted) event()         {}
func (Read) event()               {}
func (WriteFailed) event()        {}
func (GateClosed) event()         {}
func (GateOpened) event()         {}
func (Evicted) event()            {}
func (SuspectAnswered) event()    {}
func (SuspectHeld) event()        {}
func (SuspectBelieved) event()    {}
func (NameWanted) event()         {}
func (*NameTaken) event()         {}
func (Passed) event()             {}

// Error implements error.
func (e *NameTaken) Error() string { return e.Message }

// A Result is the meaning of what a call of the provider returned.
type Result int

// The results.
const (
	Succeeded Result = iota
	NoSuchPod        // the provider does not hold the pod: of Stop, Release and Inspect
	Refused          // a rejection
	Failed
)

// An Answer is the API's answer about a suspect.
type Answer int

// The answers.
const (
	AnswerNone      Answer = iota // the API did not answer
	AnswerForbidden               // the credentials can't see whether the pod exists
	AnswerGone
	AnswerThere
)

// News is what follows from an event for others.
type News struct {
	New         bool    // of Seen: the version was not known, or only from a record, or the pod was gone
	First       bool    // of Seen: no version was known
	Dropped     string  // why the report was dropped; "": it was not
	Lost        bool    // the pod turned out to be lost
	Relist      bool    // a List that begins now is needed
	Verify      bool    // the API must be asked whether it still has the pod
	Changed     bool    // of ListEnded and Repeated: Next may say something else now
	Canceled    bool    // of Returned: the call was canceled, or does not count
	Stale       bool    // of Returned and the answers: the gate closed during the call or request
	Rejected    bool    // of Returned: the pod ends because of it
	Call        *Call   // of Called and Sent
	FirstStop   bool    // of Called: Stop is called for the first time
	Fought      string  // of Seen: the field manager of a client that has undone several writes in a row
	Fresh       bool    // of Stored: it is the newest report, and the API did not have it
	Lag         Instant // of Stored: the time since that report
	Abort       bool    // calls and requests under way must be canceled
	Expired     bool    // of Passed: the pod's deadline has expired just now
	Unapplied   bool    // of Passed: the provider can't change the running pod
	Wake        Instant // of Passed: when to apply it again
	Back        bool    // of SuspectAnswered: the pod is no longer missing
	Superfluous bool    // of SuspectBelieved: an orphan is being stopped
}
