// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

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

// startRetry is the time until a run that was started and that the runtime does not list yet is
// started again.
const startRetry = time.Second

// Apply records a fact. It returns an error, and changes nothing, if the fact can't be true now.
func (c *Container) Apply(now time.Time, event Event) error {
	refuse := func(why string) error { return fmt.Errorf("container %s: %T: %s", c.spec.Name, event, why) }
	switch e := event.(type) {
	case Listed:
		c.listed(now, e)
	case SpecChanged:
		if e.Spec.Image != c.spec.Image && c.failure != nil && !c.starting {
			c.failure, c.failures, c.due = nil, 0, time.Time{} // the next try is another one
		}
		c.spec = e.Spec
	case Starting:
		if c.starting || c.Listed(Running) || c.reading {
			return refuse("the run before has not ended")
		}
		c.start(e.Resources)
	case StartEnded:
		if !c.starting {
			return refuse("no start is under way")
		}
		c.startEnded(now, e)
	case Probed:
		if e.Attempt == c.attempt && c.Listed(Running) {
			c.rec.PostStarted = c.rec.PostStarted || e.PostStarted
			c.rec.Started = c.rec.Started || e.Started
			if e.Ready != nil {
				c.rec.Ready = *e.Ready
			}
		}
	case Unhealthy:
		if e.Attempt == c.attempt && c.Listed(Running) && !c.pod.Ending && !c.Ending() {
			c.rec.EndBy, c.rec.Replace = e.By, c.rec.Replace || e.Again
		}
	case Replaced:
		if !c.Listed(Running) {
			return refuse("it does not run")
		}
		c.replace(now)
	case Resizing:
		if e.Attempt == c.attempt {
			c.rec.Resizing = true
		}
	case Resized:
		if e.Attempt == c.attempt {
			c.rec.Resources, c.rec.Resizing = e.Resources, false
		}
	case HookCalled:
		if !c.Listed(Running) || c.starting {
			return refuse("it does not run")
		}
		c.hook, c.hookBy = true, e.By
	case HookEnded:
		if e.Attempt == c.attempt && c.hook {
			c.hook, c.rec.PreStopped = false, true
		}
	case StopSent:
		if !c.Listed(Running) || c.starting {
			return refuse("it does not run")
		}
		c.stopSent(now, e)
	case StopFailed:
		if e.Attempt == c.attempt && c.sent.Equal(e.By) {
			c.sent, c.sentAt = time.Time{}, time.Time{} // the run may know nothing of it
		}
	case MessageReading:
		if !c.NeedsMessage() {
			return refuse("there is no message to read")
		}
		c.reading = true
	case MessageRead:
		if e.Attempt != c.attempt || !c.Listed(Exited) {
			break
		}
		c.reading = false
		c.rec.Message, c.rec.Noted, c.rec.Ready = e.Message, true, false
	case MessageGivenUp:
		c.reading = false
	}
	return nil
}

// listed updates the container from the runtime's list.
func (c *Container) listed(now time.Time, e Listed) {
	if n := len(e.Runs); n > 0 && e.Runs[n-1].Attempt > c.attempt {
		// A run without a record: the directory was lost, or its disk.
		c.advance(e.Runs[n-1].Attempt, Record{})
	}
	c.obs, c.prev, c.older = nil, nil, nil
	for i := range e.Runs {
		run := e.Runs[i]
		if run.Attempt == c.attempt {
			c.obs = &run
			continue
		}
		if c.prev != nil {
			c.older = append(c.older, c.prev.Attempt)
		}
		c.prev = &run
	}
	if !c.starting { // a Start that fails may leave a container that has exited for a moment
		c.ended(now)
	}
	c.inherited = false
	if c.prev == nil && c.prevRec.End != (End{}) {
		c.prev = c.prevRec.End.run(c.attempt - 1)
	}
	switch {
	case c.Listed(Running):
		if c.rec.Ran.IsZero() {
			c.began(now, e.Resources)
		}
		if c.rec.Image != c.spec.Image && c.kind != Init { // an init container that runs ends its work
			c.replace(now)
		}
	case c.Listed(Exited):
		c.exited(now)
	default:
		c.forgetStop()
	}
}

// found undoes the loss of a run that is listed again.
func (c *Container) found() {
	if c.rec.End != (End{}) && !c.rec.End.Seen {
		c.rec.Noted = false
	}
	c.rec.End = End{}
}

// began records a run that is listed as running for the first time.
func (c *Container) began(now time.Time, resources string) {
	if c.rec.Image == "" { // started by a process whose record is gone
		c.rec.Image, c.rec.Resources = c.spec.Image, resources
	}
	c.ran(now)
	if !c.Watched() {
		c.rec.PostStarted, c.rec.Started, c.rec.Ready = true, true, true
	}
}

// ran records that a run has begun. Without that, one that the runtime forgets would start again.
func (c *Container) ran(now time.Time) {
	if !c.rec.Ran.IsZero() {
		return
	}
	if c.rec.Ran = c.obs.StartedAt; c.rec.Ran.IsZero() {
		c.rec.Ran = now
	}
}

// exited records the end of a run, which may never have been listed as running.
func (c *Container) exited(now time.Time) {
	if !c.starting { // a Start that fails may leave such a container for a moment
		c.ran(now)
	}
	c.forgetStop()
	// The wait is computed once, because a clock that is set back makes it begin again.
	if held := (heldBack{true, c.attempt, c.Delay()}); held != c.backoff {
		c.backoff, c.due = held, due(c.obs.FinishedAt, held.wait, now)
	}
	if c.inPast() && !podstatus.RestartsPod(c.spec, c.obs.ExitCode) {
		c.due = time.Time{} // only the container that asked for the restart is held back
	}
}

// ended records how the newest run has ended, and puts it in place of what is listed. An end that
// was seen is final: it counts although the runtime no longer lists the run.
func (c *Container) ended(now time.Time) {
	switch {
	case c.Listed(Exited):
		if end := endOf(c.obs); end.supersedes(c.rec.End) {
			c.found()
			c.rec.End = end
		}
	case c.obs != nil:
		c.found()
		return
	case c.rec.Ran.IsZero():
		return
	case c.rec.End == End{} && c.inherited && c.pod.Announced:
		c.rec.End, c.rec.Noted = withProcess(c.rec.Ran, now), true
	case c.rec.End == End{}:
		c.rec.End, c.rec.Noted = lost(c.rec.Ran, now), true
	}
	c.obs = c.rec.End.run(c.attempt)
}

// advance makes attempt the newest run.
func (c *Container) advance(attempt int, rec Record) {
	if c.attempt >= 0 {
		c.prevRec, c.prev = c.rec, c.obs
	}
	c.attempt, c.rec, c.obs, c.reading = attempt, rec, nil, false
	c.forgetStop()
}

// forgetStop resets what was done to end a run: there is none that is listed as running.
func (c *Container) forgetStop() {
	c.sent, c.sentAt, c.hook, c.hookBy = time.Time{}, time.Time{}, false, time.Time{}
}

// replace ends the run because of a change of its spec.
func (c *Container) replace(now time.Time) {
	if c.kind == Ephemeral || c.pod.Ending || c.Ending() {
		return
	}
	c.rec.EndBy, c.rec.Replace = now.Add(c.pod.Grace), true
}

// start makes the next run the newest one.
func (c *Container) start(resources string) {
	// A start that failed is tried again with the delay that the run before it has earned.
	attempt, rec := max(c.attempt, 0), Record{Image: c.spec.Image, Resources: resources, Waited: c.rec.Waited}
	if c.Listed(Exited) {
		attempt, rec.Waited = c.attempt+1, c.waited()
	}
	if attempt != c.attempt {
		c.advance(attempt, rec)
	}
	c.rec, c.starting = rec, true
}

// startEnded records the end of a start.
func (c *Container) startEnded(now time.Time, e StartEnded) {
	c.starting, c.backoff = false, heldBack{} // due is that of the start from now on
	switch {
	case e.GivenUp:
	case e.Failure != nil:
		c.failure = e.Failure
		c.due = now.Add(e.Failure.RetryIn(c.failures, c.pod.Backoff))
		c.failures++
	default:
		c.failure, c.failures = nil, 0
		if e.MayHaveRun {
			c.rec.Ran = now // and is lost, since it is not listed
			return
		}
		c.due = now.Add(startRetry) // a runtime that lists it late is not called without end
	}
}

// stopSent records a Stop.
func (c *Container) stopSent(now time.Time, e StopSent) {
	if e.Reset {
		c.rec.Replace = true
	}
	if c.hook {
		c.hook, c.rec.PreStopped = false, true
	}
	if c.sentAt.IsZero() {
		c.sentAt = now
	}
	c.sent = e.By
}
