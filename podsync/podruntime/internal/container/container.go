// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Container is a container of a pod with its newest run.
type Container struct {
	pod  *Pod
	kind Kind
	spec *corev1.Container

	// The runs, from the runtime's list and the records.
	//
	// Invariant: rec and obs are about run attempt, prevRec and prev about an older one.
	// Invariant: older runs are older than prev.
	attempt      int  // the newest run that is known; -1: none
	inherited    bool // run attempt is of an earlier process, and nothing was listed since
	rec, prevRec Record
	obs, prev    *Run  // nil: not listed
	older        []int // listed runs before prev

	// The next start.
	//
	// Invariant: a run whose start is under way is not being stopped. It may be listed as
	// running already.
	// Invariant: failures counts the starts that failed in a row, and failure is the last one.
	starting bool // Start is under way
	due      time.Time
	backoff  heldBack // what due was computed from
	failure  *Failure
	failures int

	// The end of the run.
	//
	// Invariant: sent, sentAt and hook are zero unless run attempt is listed as running.
	// Invariant: sent and sentAt are set together.
	// Invariant: a hook under way has a deadline.
	sent, sentAt time.Time // the deadline of the last Stop and the time of the first since one failed
	hook         bool      // the preStop hook is under way
	hookBy       time.Time

	// The termination message.
	//
	// Invariant: reading implies that run attempt has exited and that its message is not noted.
	reading bool // from the log
}

// A heldBack is a run that has ended and the time for which the next one waits.
type heldBack struct {
	known   bool
	attempt int
	wait    time.Duration
}

// New returns a container that has never run.
func New(pod *Pod, kind Kind, spec *corev1.Container) *Container {
	return &Container{pod: pod, kind: kind, spec: spec, attempt: -1}
}

// Recall adds a run with the record of an earlier process. The calls are in the order of the
// attempts, and before the first event.
func (c *Container) Recall(attempt int, rec Record) {
	c.prevRec, c.rec, c.attempt, c.inherited = c.rec, rec, attempt, true
}

// Check returns the invariants that do not hold, as sentences, or nil. Tests call it.
func (c *Container) Check() error {
	var broken []string
	is := func(ok bool, sentence string) {
		if !ok {
			broken = append(broken, sentence)
		}
	}
	running, exited := c.Listed(Running), c.Listed(Exited)
	is(c.attempt >= -1, "attempt is at least -1")
	is(c.attempt >= 0 || c.rec == Record{} && c.obs == nil, "without a run there are no facts about one")
	is(c.obs == nil || c.obs.Attempt == c.attempt, "obs is about run attempt")
	is(c.prev == nil || c.prev.Attempt < c.attempt, "prev is about an older run")
	for _, attempt := range c.older {
		is(c.prev != nil && attempt < c.prev.Attempt, "older runs are older than prev")
	}
	is(!c.starting || c.sent.IsZero() && !c.hook, "a run whose start is under way is not being stopped")
	is(c.failures > 0 == (c.failure != nil), "failures counts the starts that failed, and failure is the last one")
	is(c.sent.IsZero() == c.sentAt.IsZero(), "sent and sentAt are set together")
	is(c.sentAt.IsZero() || running, "only a run that is listed as running is stopped")
	is(!c.hook || running, "only a run that is listed as running has a preStop hook under way")
	is(!c.hook || !c.hookBy.IsZero(), "a hook under way has a deadline")
	is(c.rec.EndBy.IsZero() || !c.rec.Ran.IsZero(), "only a run that ran is ended by its probes or hooks")
	is(!c.rec.Noted || exited || c.obs == nil, "a message is noted only of a run that has exited; before the first list an earlier process has noted it")
	is(!c.reading || exited && !c.rec.Noted, "the log is read for the message of a run that has exited")
	is(!c.rec.Ready || c.rec.Started || !running, "a running container is ready only after it has started")
	is(!c.rec.Started || c.rec.PostStarted, "the postStart hook precedes the startup probe")
	is(c.rec.End == End{} || !c.rec.Ran.IsZero(), "only a run that ran has ended")
	is(c.rec.End == End{} || !running, "a run that is listed as running has not ended")
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
}

// Attempt returns the newest run that is known, or -1.
func (c *Container) Attempt() int { return c.attempt }

// Record returns the record of the newest run.
func (c *Container) Record() Record { return c.rec }

// PrevRecord returns the record of the run before the newest one.
func (c *Container) PrevRecord() Record { return c.prevRec }

// Run returns the newest run as it is listed, or nil.
func (c *Container) Run() *Run { return c.obs }

// Prev returns the newest listed run before the newest one, or nil.
func (c *Container) Prev() *Run { return c.prev }

// Older returns the listed runs before Prev, which are no longer needed.
func (c *Container) Older() []int { return c.older }

// Listed reports whether the newest run is listed in a state.
func (c *Container) Listed(state State) bool { return c.obs != nil && c.obs.State == state }

// Starting reports whether a start is under way.
func (c *Container) Starting() bool { return c.starting }

// Due returns the earliest time of the next start.
func (c *Container) Due() time.Time { return c.due }

// Failure returns the reason why the last start failed, or nil.
func (c *Container) Failure() *Failure { return c.failure }

// Ending reports whether a probe, a hook or a changed spec ends the run.
func (c *Container) Ending() bool { return !c.rec.EndBy.IsZero() }

// Reading reports whether the log is read for the termination message.
func (c *Container) Reading() bool { return c.reading }

// NeedsMessage reports whether the termination message of the newest run must be read.
func (c *Container) NeedsMessage() bool { return c.Listed(Exited) && !c.rec.Noted && !c.reading }

// MayBeProbed reports whether hooks and probes of the newest run may begin.
func (c *Container) MayBeProbed() bool {
	return c.Listed(Running) && c.Watched() && !c.pod.Ending && !c.Ending()
}

// Watched reports whether a run has a postStart hook or probes.
func (c *Container) Watched() bool {
	return c.spec.Lifecycle != nil && c.spec.Lifecycle.PostStart != nil || c.spec.StartupProbe != nil || c.spec.LivenessProbe != nil || c.spec.ReadinessProbe != nil
}

// Delay returns the time for which the run after the newest one, which has exited, is held back:
// none with another image, which may not fail as this one did, and none after the announced end of
// the process.
func (c *Container) Delay() time.Duration {
	if c.rec.Image != "" && c.rec.Image != c.spec.Image || c.endedWithProcess() {
		return 0
	}
	return c.pod.Backoff.Next(c.attempt, c.rec.Waited, c.lasted())
}

// waited returns what the record of the next run has as its Delay. The end of a process neither adds
// to the back-off of a container nor resets it.
func (c *Container) waited() time.Duration {
	if c.endedWithProcess() && c.lasted() < c.pod.Backoff.Reset {
		return c.rec.Waited
	}
	return c.Delay()
}

// lasted returns the length of the newest run, which has exited; 0 if it is not known.
func (c *Container) lasted() time.Duration {
	if c.obs.StartedAt.IsZero() {
		return 0
	}
	return c.obs.FinishedAt.Sub(c.obs.StartedAt)
}

// endedWithProcess reports whether the newest run has ended with the process that ran it.
func (c *Container) endedWithProcess() bool {
	return !c.rec.End.Seen && c.rec.End.Reason == processEnded
}

// Gone reports whether the newest run was last seen running and is no longer listed.
func (c *Container) Gone() bool { return c.rec.End != End{} && !c.rec.End.Seen }

// Over reports whether the container has ended and is never started again.
func (c *Container) Over(pod *corev1.PodSpec) bool {
	v := c.view()
	return v.over(pod)
}

// inPast reports whether the newest run does not count, because all containers of
// the pod start again.
func (c *Container) inPast() bool { return c.attempt <= c.pastRun() }

// pastRun returns the newest run before the last restart of the pod, or -1.
func (c *Container) pastRun() int {
	if last, ok := c.pod.Past[c.spec.Name]; ok {
		return last
	}
	return -1
}

// view returns the input of decide.
func (c *Container) view() view {
	v := view{spec: c.spec, kind: c.kind, due: c.due, replace: c.rec.Replace, held: c.reading, repeated: c.attempt > c.pastRun()+1}
	switch {
	case c.starting:
		v.phase = starting
	case c.Listed(Running):
		v.phase, v.started = running, c.rec.Started
		v.endBy, v.sent, v.sentAt, v.hookBy = c.rec.EndBy, c.sent, c.sentAt, c.hookBy
		switch {
		case c.hook:
			v.hook = hookRunning
		case c.spec.Lifecycle != nil && c.spec.Lifecycle.PreStop != nil && !c.rec.PreStopped:
			v.hook = hookDue
		}
	case c.Listed(Exited) && !c.inPast():
		v.phase, v.exit = ended, c.obs.ExitCode
		last, ok := c.pod.Kept[c.spec.Name]
		v.kept = ok && c.attempt <= last
	}
	return v
}
