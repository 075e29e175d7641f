// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package container decides which container of a pod starts or stops next. A [Container]
// is the state of one container. Apply records facts about it, and Decide returns the next
// actions for the whole pod. The package has no clock, no goroutine and no client.
package container

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Kind is the place of a container in the life of its pod.
type Kind uint8

// The kinds.
const (
	Init Kind = iota
	Sidecar
	Regular
	Ephemeral
)

// A State is the progress of a run as the runtime lists it.
type State int

// The states, in their order.
const (
	Created State = iota // it exists and has never run
	Running
	Exited
)

// A Run is a run of a container as the runtime lists it.
type Run struct {
	Attempt    int       // counted from 0
	State      State     // its progress
	RuntimeID  string    // the name that the runtime gave it
	ImageID    string    // of its image
	StartedAt  time.Time // zero: not known
	FinishedAt time.Time // of an exited run
	ExitCode   int32     // of an exited run
	Signal     int32     // that ended it, or 0
	Reason     string    // of its exit; optional
	Message    string    // about its exit; optional
}

// A Record has the facts about a run that the runtime does not keep. It is on disk.
type Record struct {
	// Waited is the time for which the run was held back.
	Waited time.Duration `json:"waited,omitempty"`
	// Image and Resources, the text of a grant, are those that the run was given last.
	Image     string `json:"image,omitempty"`
	Resources string `json:"resources,omitempty"`
	// Resizing says that Resize was called for the run and has not succeeded since: the run may
	// have other resources.
	Resizing bool `json:"resizing,omitempty"`
	// Ran says that the runtime has listed the run as running or exited, or that it may have run.
	Ran time.Time `json:"ran,omitzero"`
	// The results of hooks and probes.
	PostStarted bool `json:"postStarted,omitempty"` // its postStart hook has returned
	Started     bool `json:"started,omitempty"`     // its startup probe has succeeded
	Ready       bool `json:"ready,omitempty"`       // the verdict of its readiness probe
	PreStopped  bool `json:"preStopped,omitempty"`  // its preStop hook has ended
	// EndBy is the time by which the run must have ended, because of a failed probe or hook or a
	// changed spec; zero: it may run on. The next process ends it too: its probes may succeed
	// again after its preStop hook has begun.
	EndBy time.Time `json:"endBy,omitzero"`
	// Replace says that the run was ended for the next one, because of a probe, a changed
	// spec or a lost sandbox: its exit says nothing about the work.
	Replace bool `json:"replace,omitempty"`
	// Message is the termination message; Noted says that it was read.
	Message string `json:"message,omitempty"`
	Noted   bool   `json:"noted,omitempty"`
	// End is how the run has ended; the zero value says that it was not seen to end. It is final:
	// an administrator may remove the container from the runtime, and then nothing else has it.
	End End `json:"end,omitzero"`
}

// An End is how a run has ended.
type End struct {
	RuntimeID  string    `json:"runtimeID,omitempty"` // as in Run, and so are the others
	ImageID    string    `json:"imageID,omitempty"`   // of its image
	StartedAt  time.Time `json:"startedAt,omitzero"`  // zero: not known
	FinishedAt time.Time `json:"finishedAt,omitzero"` // by the clock of the machine
	ExitCode   int32     `json:"exitCode,omitempty"`  // 137 if it is not known
	Signal     int32     `json:"signal,omitempty"`    // that ended it, or 0
	Reason     string    `json:"reason,omitempty"`    // of its exit; optional
	Message    string    `json:"message,omitempty"`   // about its exit; optional
	// Seen says that the runtime has listed the run as exited. Otherwise the run was last seen
	// running and is no longer listed, or has ended with its process, so its exit code is not known.
	Seen bool `json:"seen,omitempty"`
}

// endOf returns the end of a run that is listed as exited.
func endOf(run *Run) End {
	return End{
		RuntimeID: run.RuntimeID, ImageID: run.ImageID, StartedAt: run.StartedAt.UTC().Round(0), FinishedAt: run.FinishedAt.UTC().Round(0),
		ExitCode: run.ExitCode, Signal: run.Signal, Reason: run.Reason, Message: run.Message, Seen: true,
	}
}

// lost returns the end of a run that was last seen running and that the runtime no longer lists.
func lost(ran, now time.Time) End {
	return End{
		StartedAt: ran, FinishedAt: now, ExitCode: 137, Reason: "ContainerStatusUnknown",
		Message: "the runtime no longer has the container",
	}
}

// processEnded is the reason of a run that has ended with the process that ran it.
const processEnded = "ProcessEnded"

// withProcess returns the end of a run that has ended with the process that ran it.
func withProcess(ran, now time.Time) End {
	return End{
		StartedAt: ran, FinishedAt: now, ExitCode: 137, Reason: processEnded,
		Message: "the process that ran the container has ended",
	}
}

// run returns the run that has ended so, as it would be listed.
func (e *End) run(attempt int) *Run {
	return &Run{
		Attempt: attempt, State: Exited, RuntimeID: e.RuntimeID, ImageID: e.ImageID, StartedAt: e.StartedAt, FinishedAt: e.FinishedAt,
		ExitCode: e.ExitCode, Signal: e.Signal, Reason: e.Reason, Message: e.Message,
	}
}

// supersedes reports whether a listed exit replaces the end in a record: one that is not known, or
// the same one, of which the runtime knows more by now. Any other one is of a runtime that has
// forgotten the exit.
func (e *End) supersedes(old End) bool {
	return !old.Seen || e.ExitCode == old.ExitCode && e.FinishedAt.Equal(old.FinishedAt)
}

// A Failure is the reason why a container could not be started.
type Failure struct {
	Reason        string // in CamelCase, for the status
	BackoffReason string // instead of Reason while the next try is held back; optional
	Message       string // for people
}

// maxPreparation is the longest wait after a start that has failed.
const maxPreparation = time.Minute

// RetryIn returns the wait after the nth failure in a row, counted from 0.
func (f *Failure) RetryIn(n int, b Backoff) time.Duration {
	if f.BackoffReason != "" { // it has the kubelet's back-off for pulls
		return min(b.Initial<<min(n, 10), b.Max)
	}
	return Preparation(n)
}

// Preparation returns the wait after the nth failure in a row of a call that prepares a start,
// counted from 0.
func Preparation(n int) time.Duration { return min(time.Second<<min(n, 10), maxPreparation) }

// A Backoff is how long a container that has ended waits for its next start.
type Backoff struct {
	Initial time.Duration // before the second restart; there is no wait before the first
	Max     time.Duration // of the doubling
	Reset   time.Duration // a run of this length makes the next one a first one
}

// Next returns how long to wait after a run. attempt counts the runs from 0,
// waited is how long this one had waited itself, and ran how long it has lasted.
func (b Backoff) Next(attempt int, waited, ran time.Duration) time.Duration {
	switch {
	case attempt == 0, ran >= b.Reset:
		return 0
	case waited == 0:
		return b.Initial
	}
	return min(2*waited, b.Max)
}

// due returns when a container may be started again that has finished at a time and
// is to wait. That time was read from a clock that may have been set back since,
// which is no reason to wait for longer.
func due(finished time.Time, wait time.Duration, now time.Time) time.Time {
	return now.Add(min(finished.Add(wait).Sub(now), wait))
}

// A Pod is what its containers know of a pod. The containers of a pod share one.
type Pod struct {
	// Ending says that the pod is being stopped.
	Ending bool
	// Past has, by container, the newest run that does not count, because all containers
	// started again after it.
	Past map[string]int
	// Kept has, by container, the newest run before the last such restart, if its result
	// counts although the others start again.
	Kept map[string]int
	// Grace is the grace period of the pod.
	Grace time.Duration
	// Backoff holds back the next runs.
	Backoff Backoff
	// Announced says that the process before has announced its end, and that its runs have ended
	// with it.
	Announced bool
}

// An Event is a fact about a container: one of the types below.
type Event interface{ event() }

// Listed says which runs the runtime lists.
type Listed struct {
	Runs      []Run  // by attempt
	Resources string // the text of the grant that the container should have
}

// SpecChanged replaces the spec.
type SpecChanged struct {
	Spec *corev1.Container // with the same name
}

// Starting says that the next run is being started.
type Starting struct {
	Resources string // the text of its grant
}

// StartEnded is the end of a start. The zero value says that the run has begun.
type StartEnded struct {
	MayHaveRun bool     // the run may have begun, and does not run
	Failure    *Failure // not nil: the run has not begun
	GivenUp    bool     // the run has not begun, because the pod ends
}

// Probed is the result of hooks and probes of a run.
type Probed struct {
	Attempt     int   // the run
	PostStarted bool  // the postStart hook has returned
	Started     bool  // the startup probe has succeeded
	Ready       *bool // the verdict of the readiness probe; nil: it has not changed
}

// Unhealthy says that a probe or hook of a run has failed.
type Unhealthy struct {
	Attempt int       // the run
	By      time.Time // when it must have ended
	Again   bool      // the next run starts whatever the exit code
}

// Replaced says that the run must end because another one with a changed spec takes its place.
type Replaced struct{}

// Resizing says that Resize is called for a run.
type Resizing struct {
	Attempt int // the run
}

// Resized says which resources a run has.
type Resized struct {
	Attempt   int    // the run
	Resources string // the text of its grant
}

// HookCalled says that the preStop hook was called, or has another deadline.
type HookCalled struct {
	By time.Time // the deadline
}

// HookEnded says that the preStop hook of a run has returned.
type HookEnded struct {
	Attempt int // the run
}

// StopSent says that Stop was called.
type StopSent struct {
	By    time.Time // the deadline
	Reset bool      // all containers of the pod start again: the exit code says nothing about the work
}

// StopFailed says that a Stop failed, so that it must be called again.
type StopFailed struct {
	Attempt int       // the run
	By      time.Time // the deadline of the Stop
}

// MessageReading says that the termination message is read from the log.
type MessageReading struct{}

// MessageRead is the termination message of a run.
type MessageRead struct {
	Attempt int    // the run
	Message string // empty: it has left none
}

// MessageGivenUp says that the reading of a message has ended without one: the next process reads it.
type MessageGivenUp struct{}

func (Listed) event()         {}
func (SpecChanged) event()    {}
func (Starting) event()       {}
func (StartEnded) event()     {}
func (Probed) event()         {}
func (Unhealthy) event()      {}
func (Replaced) event()       {}
func (Resizing) event()       {}
func (Resized) event()        {}
func (HookCalled) event()     {}
func (HookEnded) event()      {}
func (StopSent) event()       {}
func (StopFailed) event()     {}
func (MessageReading) event() {}
func (MessageRead) event()    {}
func (MessageGivenUp) event() {}
