// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A Phase is the state of a lease as it is reported. The public Phase of package
// lease has the same values.
type Phase int

// The phases. Those of package lease say what they mean.
const (
	Pending    Phase = iota // like PhasePending
	Held                    // like PhaseHeld
	Foreign                 // like PhaseForeign
	GateClosed              // like PhaseGateClosed
	NoOwner                 // like PhaseNoOwner
	Stopped                 // like PhaseStopped
)

// String returns the name of the phase.
func (p Phase) String() string {
	return [...]string{"Pending", "Held", "Foreign", "GateClosed", "NoOwner", "Stopped"}[p]
}

// Rules are the same for all leases of a controller.
type Rules struct {
	// Duration and Interval are Duration and RenewInterval of the Config.
	Duration, Interval time.Duration
	// Process is this one.
	Process Process
	// Shared says that other processes may have the same name as Process: it is the default,
	// the name of the host. Life is the LifeAnnotation that may prove its end, or "".
	Shared bool
	Life   string
}

// An Instant is now on two clocks. The monotonic one schedules. The wall clock goes
// into RenewTime, and Holds compares it with the monotonic one.
type Instant struct {
	// Since is the time since the controller was made.
	Since time.Duration
	// Wall is the wall clock in microseconds since 1970, the resolution of RenewTime.
	Wall int64
}

// Never is before every instant.
const Never = time.Duration(-1 << 62)

// A Process is the process that renews a lease.
type Process struct {
	// Name is Config.Process.
	Name string
	// Start differs with each Controller.
	Start string
}

// ProcessAnnotation is on the leases that this package writes: who renews it,
// as NAME/START.
const ProcessAnnotation = "lease.kubewright.dev/process"

// LifeAnnotation is on the leases of processes that have the default name: START LIFE. It
// has a key of its own because earlier versions read the other annotation. These keep this
// one as it is, so it counts only if START is that of ProcessAnnotation.
const LifeAnnotation = "lease.kubewright.dev/life"

// LifeAnnotationOf returns the annotation of a process for what it says about its life.
func LifeAnnotationOf(p Process, life string) string { return p.Start + " " + life }

// ended is the LIFE of a process that has written that it ends.
const ended = "ended"

// LifeOf returns the life of the process that a lease names, or "".
func LifeOf(lease *coordinationv1.Lease) string {
	start, life, _ := strings.Cut(lease.Annotations[LifeAnnotation], " ")
	if start == "" || start != processOf(lease).Start {
		return ""
	}
	return life
}

// String returns NAME/START, as in ProcessAnnotation.
func (p Process) String() string { return p.Name + "/" + p.Start }

// processOf returns the process that a lease names, or none.
func processOf(lease *coordinationv1.Lease) Process {
	value := lease.Annotations[ProcessAnnotation]
	i := strings.LastIndexByte(value, '/')
	if i < 0 {
		return Process{Name: value}
	}
	return Process{Name: value[:i], Start: value[i+1:]}
}

// A Party is the holder of a lease, as it is reported.
type Party struct {
	// Holder is the holder identity.
	Holder string
	// Process is the Config.Process of that process, if the lease names it. If both have the
	// default, it is NAME/START, which tells the other one from us.
	Process string
}

// String returns the party as it is reported.
func (p Party) String() string {
	if p.Process == "" {
		return strconv.Quote(p.Holder)
	}
	return fmt.Sprintf("%q (process %q)", p.Holder, p.Process)
}

// partyOf returns the holder of a lease. If the annotation is the one that we have
// written, the holder is a client that leaves it as it is.
func partyOf(r *Rules, lease *coordinationv1.Lease) Party {
	holder, by := ptr.Deref(lease.Spec.HolderIdentity, ""), processOf(lease)
	if by == r.Process {
		return Party{Holder: holder}
	}
	if r.Shared && by.Name == r.Process.Name {
		return Party{Holder: holder, Process: by.String()}
	}
	return Party{Holder: holder, Process: by.Name}
}

// An Event is a fact about one lease: one of the types below.
type Event interface{ isEvent() }

// Consent begins a turn: what Gate and Owner have returned. The word answer is for the API
// server.
type Consent struct {
	// NodeName is the node, and Holder who we are.
	NodeName, Holder string
	// Gate is why the gate is closed, or nil.
	Gate error
	// Owner owns the lease. OwnerErr is why it is not known, or nil, and NodeGone says
	// that OwnerErr means that the Node does not exist.
	Owner    metav1.OwnerReference
	OwnerErr error
	NodeGone bool
}

// Leaving begins the last turn: the lease is given up, if it is ours.
type Leaving struct {
	// NodeName is the node, and Holder who we are.
	NodeName, Holder string
	// Last is the last write: Expire, Sign or Delete.
	Last Do
}

// Answered is the answer to the request of an action.
type Answered struct {
	// To is the action.
	To Action
	// Lease is the lease as the API server has it; with OK only.
	Lease *coordinationv1.Lease
	// Dead says that the process that Lease names is known to have died.
	Dead bool
	// Answer is the kind of answer, and Err the error; nil with OK only.
	Answer Answer
	Err    error
	// RetryAfter is the wait that the API server asked for.
	RetryAfter time.Duration
}

// CutOff says that a request was abandoned, because Run ends or the node was
// removed.
type CutOff struct {
	// To is the action.
	To Action
}

// Reported ends a turn: its result was reported.
type Reported struct{}

// Ended says that the node is no longer managed.
type Ended struct{}

func (Consent) isEvent()  {}
func (Leaving) isEvent()  {}
func (Answered) isEvent() {}
func (CutOff) isEvent()   {}
func (Reported) isEvent() {}
func (Ended) isEvent()    {}

// An Answer is a kind of answer to a request.
type Answer uint8

// The answers that lead to different decisions.
const (
	// OK is a success.
	OK Answer = iota
	// Conflict means that another client has written, or that the name exists.
	Conflict
	// Missing means that the object does not exist.
	Missing
	// NotFound is a 404 that may be about something else, such as that of a proxy.
	NotFound
	// Invalid means that the same request will fail again.
	Invalid
	// Refused means that the credentials or permissions are wrong.
	Refused
	// Failed is anything else.
	Failed
)

// A Do is what an action asks for.
type Do uint8

// The actions. All but Finish are requests.
const (
	// Finish ends the turn: report Action.Result, and apply Reported.
	Finish Do = iota
	// Get reads the lease.
	Get
	// Create creates it.
	Create
	// Update renews it.
	Update
	// Expire updates it so that no other process waits for us.
	Expire
	// Sign updates it to say that this process has ended.
	Sign
	// Delete deletes it, on condition that UID and version are those of Action.Lease.
	Delete
)

// String returns the verb of the request.
func (d Do) String() string {
	return [...]string{"finish", "GET", "POST", "PUT", "expire", "sign", "DELETE"}[d]
}

func (d Do) isWrite() bool { return d != Finish && d != Get }

// An Action is the next one of a turn.
type Action struct {
	// Do says what to do.
	Do Do
	// At is when it was decided.
	At Instant
	// Lease is the lease to write or delete.
	Lease *coordinationv1.Lease
	// Result is the end of the turn; with Finish only.
	Result Result
}

// A Result is the end of a turn, for reports, and when the next turn is.
type Result struct {
	// Written says that the lease was renewed, and Created that it did not exist before.
	Written, Created bool
	// Released says that it was given up.
	Released bool
	// Skipped says that there was nothing to write.
	Skipped bool
	// Err says why the turn failed, or is nil.
	Err error
	// Recovered is the time between two renewals if the lease had expired; else 0.
	Recovered time.Duration
	// Vanished says that the lease that we held is gone.
	Vanished bool
	// HeldBack is the time for which the lease is not created, because its Node may be
	// gone; else 0.
	HeldBack time.Duration
	// Stolen is who has written our lease three times now.
	Stolen Party
	// TakenOver is whom we took it from.
	TakenOver Party
	// Behind is how far our clock is behind RenewTime, if that is news.
	Behind time.Duration

	// Wait is the time until the next turn; 0 for the next slot.
	Wait time.Duration
}
