// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A Container is a container of a pod with its newest run. Its exported fields are there to be
// read: only Recall and Apply change them.
type Container struct {
	pod  *Pod
	kind Kind
	spec *corev1.Container

	// The runs, from the runtime's list and the records.
	//
	// Invariant: Record and Run are about run Attempt, PrevRecord and Prev about an older one.
	// Invariant: Older runs are older than Prev.
	Attempt            int    // the newest run that is known; -1: none
	inherited          bool   // run Attempt is of an earlier process, and nothing was listed since
	Record, PrevRecord Record // what the runtime does not keep
	Run, Prev          *Run   // as they are listed, or as their records say that they ended; nil: not listed
	Older              []int  // listed runs before Prev, which are no longer needed

	// The next start.
	//
	// Invariant: a run whose start is under way is not being stopped. It may be listed as
	// running already.
	// Invariant: failures counts the starts that failed in a row, and Failure is the last one.
	Starting bool      // Start is under way
	Due      time.Time // the earliest time of the next start
	backoff  heldBack  // what Due was computed from
	Failure  *Failure  // why the last start failed; nil: it has not
	failures int

	// The end of the run.
	//
	// Invariant: sent, sentAt and hook are zero unless run Attempt is listed as running.
	// Invariant: sent and sentAt are set together.
	// Invariant: a hook under way has a deadline.
	sent, sentAt time.Time // the deadline of the last Stop and the time of the first since one failed
	hook         bool      // the preStop hook is under way
	hookBy       time.Time

	// The termination message.
	//
	// Invariant: reading implies that run Attempt has exited and that its message is not noted.
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
	return &Container{pod: pod, kind: kind, spec: spec, Attempt: -1}
}

// Recall adds a run with the record of an earlier process. The calls are in the order of the
// attempts, and before the first event.
func (c *Container) Recall(attempt int, rec Record) {
	c.PrevRecord, c.Record, c.Attempt, c.inherited = c.Record, rec, attempt, true
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
	is(c.Attempt >= -1, "attempt is at least -1")
	is(c.Attempt >= 0 || c.Record == Record{} && c.Run == nil, "without a run there are no facts about one")
	is(c.Run == nil || c.Run.Attempt == c.Attempt, "Run is about run Attempt")
	is(c.Prev == nil || c.Prev.Attempt < c.Attempt, "Prev is about an older run")
	for _, attempt := range c.Older {
		is(c.Prev != nil && attempt < c.Prev.Attempt, "Older runs are older than Prev")
	}
	is(!c.Starting || c.sent.IsZero() && !c.hook, "a run whose start is under way is not being stopped")
	is(c.failures > 0 == (c.Failure != nil), "failures counts the starts that failed, and Failure is the last one")
	is(c.sent.IsZero() == c.sentAt.IsZero(), "sent and sentAt are set together")
	is(c.sentAt.IsZero() || running, "only a run that is listed as running is stopped")
	is(!c.hook || running, "only a run that is listed as running has a preStop hook under way")
	is(!c.hook || !c.hookBy.IsZero(), "a hook under way has a deadline")
	is(c.Record.EndBy.IsZero() || !c.Record.Ran.IsZero(), "only a run that ran is ended by its probes or hooks")
	is(!c.Record.Noted || exited || c.Run == nil, "a message is noted only of a run that has exited; before the first list an earlier process has noted it")
	is(!c.reading || exited && !c.Record.Noted, "the log is read for the message of a run that has exited")
	is(!c.Record.Ready || c.Record.Started || !running, "a running container is ready only after it has started")
	is(!c.Record.Started || c.Record.PostStarted, "the postStart hook precedes the startup probe")
	is(c.Record.End == End{} || !c.Record.Ran.IsZero(), "only a run that ran has ended")
	is(c.Record.End == End{} || !running, "a run that is listed as running has not ended")
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
}

// Listed reports whether the newest run is listed in a state.
func (c *Container) Listed(state State) bool { return c.Run != nil && c.Run.State == state }

// Ending reports whether a probe, a hook or a changed spec ends the run.
func (c *Container) Ending() bool { return !c.Record.EndBy.IsZero() }

// NeedsMessage reports whether the termination message of the newest run must be read.
func (c *Container) NeedsMessage() bool { return c.Listed(Exited) && !c.Record.Noted && !c.reading }

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
	if c.Record.Image != "" && c.Record.Image != c.spec.Image || c.endedWithProcess() {
		return 0
	}
	return c.pod.Backoff.Next(c.Attempt, c.Record.Waited, c.lasted())
}

// waited returns what the record of the next run has as its Delay. The end of a process neither adds
// to the back-off of a container nor resets it.
func (c *Container) waited() time.Duration {
	if c.endedWithProcess() && c.lasted() < c.pod.Backoff.Reset {
		return c.Record.Waited
	}
	return c.Delay()
}

// lasted returns the length of the newest run, which has exited; 0 if it is not known.
func (c *Container) lasted() time.Duration {
	if c.Run.StartedAt.IsZero() {
		return 0
	}
	return c.Run.FinishedAt.Sub(c.Run.StartedAt)
}

// endedWithProcess reports whether the newest run has ended with the process that ran it.
func (c *Container) endedWithProcess() bool {
	return !c.Record.End.Seen && c.Record.End.Reason == processEnded
}

// Gone reports whether the newest run was last seen running and is no longer listed.
func (c *Container) Gone() bool { return c.Record.End != End{} && !c.Record.End.Seen }

// LastBegun returns the newest run that has begun, or -1. If the start of the newest one has failed, or
// was cut off, the next start is that of the same run.
func (c *Container) LastBegun() int {
	if c.Record.Ran.IsZero() {
		return c.Attempt - 1
	}
	return c.Attempt
}

// Over reports whether the container has ended and is never started again.
func (c *Container) Over(pod *corev1.PodSpec) bool {
	v := c.view()
	return v.over(pod)
}

// inPast reports whether the newest run does not count, because all containers of
// the pod start again.
func (c *Container) inPast() bool { return c.Attempt <= c.pastRun() }

// pastRun returns the newest run before the last restart of the pod, or -1.
func (c *Container) pastRun() int {
	if last, ok := c.pod.Past[c.spec.Name]; ok {
		return last
	}
	return -1
}

// view returns the input of decide.
func (c *Container) view() view {
	v := view{spec: c.spec, kind: c.kind, due: c.Due, replace: c.Record.Replace, held: c.reading, repeated: c.Attempt > c.pastRun()+1}
	switch {
	case c.Starting:
		v.phase = starting
	case c.Listed(Running):
		v.phase, v.started = running, c.Record.Started
		v.endBy, v.sent, v.sentAt, v.hookBy = c.Record.EndBy, c.sent, c.sentAt, c.hookBy
		switch {
		case c.hook:
			v.hook = hookRunning
		case c.spec.Lifecycle != nil && c.spec.Lifecycle.PreStop != nil && !c.Record.PreStopped:
			v.hook = hookDue
		}
	case c.Listed(Exited) && !c.inPast():
		v.phase, v.exit = ended, c.Run.ExitCode
		last, ok := c.pod.Kept[c.spec.Name]
		v.kept = ok && c.Attempt <= last
	}
	return v
}

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
		if e.Spec.Image != c.spec.Image && c.Failure != nil && !c.Starting {
			c.Failure, c.failures, c.Due = nil, 0, time.Time{} // the next try is another one
		}
		c.spec = e.Spec
	case Starting:
		if c.Starting || c.Listed(Running) || c.reading {
			return refuse("the run before has not ended")
		}
		c.start(e.Resources)
	case StartEnded:
		if !c.Starting {
			return refuse("no start is under way")
		}
		c.startEnded(now, e)
	case Probed:
		if e.Attempt == c.Attempt && c.Listed(Running) {
			c.Record.PostStarted = c.Record.PostStarted || e.PostStarted
			c.Record.Started = c.Record.Started || e.Started
			if e.Ready != nil {
				c.Record.Ready = *e.Ready
			}
		}
	case Unhealthy:
		if e.Attempt == c.Attempt && c.Listed(Running) && !c.pod.Ending && !c.Ending() {
			c.Record.EndBy, c.Record.Replace = e.By, c.Record.Replace || e.Again
		}
	case Replaced:
		if !c.Listed(Running) {
			return refuse("it does not run")
		}
		c.replace(now)
	case Resizing:
		if e.Attempt == c.Attempt {
			c.Record.Resizing = true
		}
	case Resized:
		if e.Attempt == c.Attempt {
			c.Record.Resources, c.Record.Resizing = e.Resources, false
		}
	case HookCalled:
		if !c.Listed(Running) || c.Starting {
			return refuse("it does not run")
		}
		c.hook, c.hookBy = true, e.By
	case HookEnded:
		if e.Attempt == c.Attempt && c.hook {
			c.hook, c.Record.PreStopped = false, true
		}
	case StopSent:
		if !c.Listed(Running) || c.Starting {
			return refuse("it does not run")
		}
		c.stopSent(now, e)
	case StopFailed:
		if e.Attempt == c.Attempt && c.sent.Equal(e.By) {
			c.sent, c.sentAt = time.Time{}, time.Time{} // the run may know nothing of it
		}
	case MessageReading:
		if !c.NeedsMessage() {
			return refuse("there is no message to read")
		}
		c.reading = true
	case MessageRead:
		if e.Attempt != c.Attempt || !c.Listed(Exited) {
			break
		}
		c.reading = false
		c.Record.Message, c.Record.Noted, c.Record.Ready = e.Message, true, false
	case MessageGivenUp:
		c.reading = false
	}
	return nil
}

// listed updates the container from the runtime's list.
func (c *Container) listed(now time.Time, e Listed) {
	if n := len(e.Runs); n > 0 && e.Runs[n-1].Attempt > c.Attempt {
		// A run without a record: the directory was lost, or its disk.
		c.advance(e.Runs[n-1].Attempt, Record{})
	}
	c.Run, c.Prev, c.Older = nil, nil, nil
	for i := range e.Runs {
		run := e.Runs[i]
		if run.Attempt == c.Attempt {
			c.Run = &run
			continue
		}
		if c.Prev != nil {
			c.Older = append(c.Older, c.Prev.Attempt)
		}
		c.Prev = &run
	}
	if !c.Starting { // a Start that fails may leave a container that has exited for a moment
		c.ended(now)
	}
	c.inherited = false
	if c.Prev == nil && c.PrevRecord.End != (End{}) {
		c.Prev = c.PrevRecord.End.run(c.Attempt - 1)
	}
	switch {
	case c.Listed(Running):
		if c.Record.Ran.IsZero() {
			c.began(now, e.Resources)
		}
		if c.Record.Image != c.spec.Image && c.kind != Init { // an init container that runs ends its work
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
	if c.Record.End != (End{}) && !c.Record.End.Seen {
		c.Record.Noted = false
	}
	c.Record.End = End{}
}

// began records a run that is listed as running for the first time.
func (c *Container) began(now time.Time, resources string) {
	if c.Record.Image == "" { // started by a process whose record is gone
		c.Record.Image, c.Record.Resources = c.spec.Image, resources
	}
	c.ran(now)
	if !c.Watched() {
		c.Record.PostStarted, c.Record.Started, c.Record.Ready = true, true, true
	}
}

// ran records that a run has begun. Without that, one that the runtime forgets would start again.
func (c *Container) ran(now time.Time) {
	if !c.Record.Ran.IsZero() {
		return
	}
	if c.Record.Ran = c.Run.StartedAt; c.Record.Ran.IsZero() {
		c.Record.Ran = now
	}
}

// exited records the end of a run, which may never have been listed as running.
func (c *Container) exited(now time.Time) {
	if !c.Starting { // a Start that fails may leave such a container for a moment
		c.ran(now)
	}
	c.forgetStop()
	// The wait is computed once, because a clock that is set back makes it begin again.
	if held := (heldBack{true, c.Attempt, c.Delay()}); held != c.backoff {
		c.backoff, c.Due = held, due(c.Run.FinishedAt, held.wait, now)
	}
	if c.inPast() && !podstatus.RestartsPod(c.spec, c.Run.ExitCode) {
		c.Due = time.Time{} // only the container that asked for the restart is held back
	}
}

// ended records how the newest run has ended, and puts it in place of what is listed. An end that
// was seen is final: it counts although the runtime no longer lists the run.
func (c *Container) ended(now time.Time) {
	switch {
	case c.Listed(Exited):
		if end := endOf(c.Run); end.supersedes(c.Record.End) {
			c.found()
			c.Record.End = end
		}
	case c.Run != nil:
		c.found()
		return
	case c.Record.Ran.IsZero():
		return
	case c.Record.End == End{} && c.inherited && c.pod.Announced:
		c.Record.End, c.Record.Noted = withProcess(c.Record.Ran, now), true
	case c.Record.End == End{}:
		c.Record.End, c.Record.Noted = lost(c.Record.Ran, now), true
	}
	c.Run = c.Record.End.run(c.Attempt)
}

// advance makes attempt the newest run.
func (c *Container) advance(attempt int, rec Record) {
	if c.Attempt >= 0 {
		c.PrevRecord, c.Prev = c.Record, c.Run
	}
	c.Attempt, c.Record, c.Run, c.reading = attempt, rec, nil, false
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
	c.Record.EndBy, c.Record.Replace = now.Add(c.pod.Grace), true
}

// start makes the next run the newest one.
func (c *Container) start(resources string) {
	// A start that failed is tried again with the delay that the run before it has earned.
	attempt, rec := max(c.Attempt, 0), Record{Image: c.spec.Image, Resources: resources, Waited: c.Record.Waited}
	if c.Listed(Exited) {
		attempt, rec.Waited = c.Attempt+1, c.waited()
	}
	if attempt != c.Attempt {
		c.advance(attempt, rec)
	}
	c.Record, c.Starting = rec, true
}

// startEnded records the end of a start.
func (c *Container) startEnded(now time.Time, e StartEnded) {
	c.Starting, c.backoff = false, heldBack{} // due is that of the start from now on
	switch {
	case e.GivenUp:
	case e.Failure != nil:
		c.Failure = e.Failure
		c.Due = now.Add(e.Failure.RetryIn(c.failures, c.pod.Backoff))
		c.failures++
	default:
		c.Failure, c.failures = nil, 0
		if e.MayHaveRun {
			c.Record.Ran = now // and is lost, since it is not listed
			return
		}
		c.Due = now.Add(startRetry) // a runtime that lists it late is not called without end
	}
}

// stopSent records a Stop.
func (c *Container) stopSent(now time.Time, e StopSent) {
	if e.Reset {
		c.Record.Replace = true
	}
	if c.hook {
		c.hook, c.Record.PreStopped = false, true
	}
	if c.sentAt.IsZero() {
		c.sentAt = now
	}
	c.sent = e.By
}

// A World is what Decide looks at.
type World struct {
	// Containers are the init containers, the regular containers and the ephemeral ones, each
	// in the order of the spec.
	Containers []*Container
	Sandbox    SandboxState // the progress of the pod's sandbox
	SandboxDue time.Time    // the earliest time of the next SetUpPod or TearDownPod
	Deadline   *time.Time   // not nil if the pod is being stopped
}

// A Timed is a container, by its index, and the time by which something must be over.
type Timed struct {
	Container int       // its index in World.Containers
	By        time.Time // the deadline
}

// A Plan is the actions to take now.
type Plan struct {
	SetUp    bool    // call SetUpPod
	TearDown bool    // call TearDownPod
	Start    []int   // the containers to start
	Hook     []Timed // call the preStop hook, or shorten it
	Stop     []Timed // call Stop
	// Again is the time of the next decision if nothing happens; zero: not needed.
	Again time.Time
	// Reset says that every container ends and starts again, Restarting that a rule
	// is the reason, and Restart that all have ended: the runs so far are history.
	Reset, Restarting, Restart bool
	// Finished says that the work is done, or can't be: the pod must be stopped.
	Finished bool
	// Stopped says that nothing runs and that the sandbox is gone.
	Stopped bool
}

// Wait makes sure that Again is no later than a time.
func (p *Plan) Wait(until time.Time) {
	if p.Again.IsZero() || until.Before(p.Again) {
		p.Again = until
	}
}

// Decide returns the actions for a pod. It changes nothing.
func Decide(pod *corev1.PodSpec, w World, now time.Time) Plan {
	in := world{World: w}
	for _, c := range w.Containers {
		in.views = append(in.views, c.view())
	}
	return decide(pod, in, now)
}

// A phase is the progress of the newest run of a container.
type phase uint8

const (
	idle     phase = iota // it has not been started, or its start has failed
	starting              // Start has been called and has not returned
	running               // the Runtime lists it as running
	ended                 // it has exited
)

// A hookState is the progress of the preStop hook of a run.
type hookState uint8

const (
	hookNone    hookState = iota // there is none, or it has returned
	hookDue                      // it has not been called
	hookRunning                  // it has been called and has not returned
)

// A SandboxState is the progress of the sandbox of a pod.
type SandboxState uint8

const (
	SandboxNone  SandboxState = iota // the Runtime is no Sandboxer, or the sandbox is torn down
	SandboxUnset                     // the Runtime lists no sandbox of the pod
	SandboxBusy                      // SetUpPod or TearDownPod has been called and has not returned
	SandboxReady                     // containers can run
	SandboxLost                      // the sandbox is not ready, and containers may be left from it
)

// A view is the input of decide about one container.
//
// Invariant: exit is meaningful if phase is ended, and started, endBy, hook, sent
// and sentAt if phase is running.
type view struct {
	spec *corev1.Container
	kind Kind
	phase
	exit int32
	// replace says that the run must end because its spec has changed, and that
	// the next one starts whatever the restart policy says.
	replace bool
	// started says that it runs, that the postStart hook has returned and that the
	// startup probe has succeeded.
	started bool
	// kept says that it ended before the last restart of the pod, and that its result counts.
	kept bool
	// repeated says that a run before this one has begun since the last restart of the pod.
	repeated bool
	// held says that its message is read first: it does not start, and the pod has not stopped.
	held bool
	// due is the earliest time of the next start.
	due time.Time
	// endBy is the deadline of a run that must end although the pod goes on, because
	// a probe or a hook has failed; zero: it may run on.
	endBy time.Time
	hook  hookState
	// hookBy is the deadline of the hook if it runs.
	hookBy time.Time
	// sent is the deadline that the Runtime was given; zero: none. sentAt is the
	// time at which it was given one first.
	sent, sentAt time.Time
}

// over reports whether the container has ended and is never started again.
func (v *view) over(pod *corev1.PodSpec) bool {
	if v.phase != ended || v.replace {
		return false
	}
	if v.kind == Ephemeral || v.kind == Init && v.exit == 0 {
		return true // whatever the restart policy
	}
	return !podstatus.ShouldRestart(pod, v.spec, v.exit)
}

// live reports whether the container runs or may come to run.
func (v *view) live() bool { return v.phase == running || v.phase == starting }

// A world is a World with a view of each container.
type world struct {
	World
	views []view
}

const (
	// MinWindow is the shortest time between a request to end and the kill.
	MinWindow = 2 * time.Second
	// KillRetry is the time after which a container that should be dead is
	// stopped again.
	KillRetry = 10 * time.Second
)

// decide returns the actions for a pod.
func decide(pod *corev1.PodSpec, w world, now time.Time) Plan {
	if w.Deadline != nil {
		return decideStop(w, now)
	}
	if p, restarting := decideRestart(pod, w, now); restarting {
		return p
	}
	p := decideRun(pod, w, now)
	if p.Finished {
		return Plan{Finished: true}
	}
	if len(p.Start) > 0 && w.Sandbox != SandboxNone && w.Sandbox != SandboxReady {
		p.Start = nil
		if w.SandboxDue.After(now) {
			p.Wait(w.SandboxDue)
		} else {
			p.SetUp = w.Sandbox != SandboxBusy
		}
	}
	return p
}

// decideRestart handles the exits and losses after which all containers start
// again: an exit that a rule with the action RestartAllContainers matches, and the
// loss of the sandbox. A pod that is never restarted ends when its sandbox is lost.
func decideRestart(pod *corev1.PodSpec, w world, now time.Time) (p Plan, restarting bool) {
	lost := w.Sandbox == SandboxLost && slices.ContainsFunc(w.views, func(v view) bool {
		return v.phase != idle && v.kind != Ephemeral && (v.kind != Regular || !v.over(pod))
	})
	if lost && pod.RestartPolicy == corev1.RestartPolicyNever {
		return Plan{Finished: true}, true // with Finished set, Decide ends the pod
	}
	for i := range w.views {
		v := &w.views[i]
		p.Restarting = p.Restarting || v.phase == ended && podstatus.RestartsPod(v.spec, v.exit)
	}
	if !p.Restarting && !lost {
		return Plan{}, false
	}
	if lost && decideRun(pod, w, now).Finished {
		return Plan{}, false // the work was done before
	}
	p.Reset, p.Restart = true, true
	for i := range w.views {
		v := &w.views[i]
		if v.kind == Ephemeral && !lost {
			continue
		}
		if v.phase == running {
			p.end(i, v, now, now) // without a hook, because no time is left for one
		}
		p.Restart = p.Restart && !v.live()
	}
	return p, true
}

// decideRun starts the containers of a pod in order and ends those that failed.
func decideRun(pod *corev1.PodSpec, w world, now time.Time) (p Plan) {
	start := func(i int) {
		switch v := &w.views[i]; {
		case v.live(), v.held:
		case v.due.After(now):
			p.Wait(v.due)
		default:
			p.Start = append(p.Start, i)
		}
	}
	// Once a regular container has run since the last restart of the pod, the init
	// containers are history, except for sidecars.
	initialized := slices.ContainsFunc(w.views, func(v view) bool {
		return v.kind == Regular && !v.kept && (v.repeated || v.phase == running || v.phase == ended)
	})
	ready := true // for the next container in the order
	done, all := 0, 0
	for i := range w.views {
		v := &w.views[i]
		if v.phase == running && !v.endBy.IsZero() {
			p.end(i, v, v.endBy, now)
		}
		switch {
		case v.kind == Ephemeral:
			if v.phase == idle {
				start(i)
			}
		case !ready && !initialized:
			all++ // not done, at any rate
			// No sidecar before it can help.
			p.Finished = p.Finished || v.kind == Init && v.over(pod) && v.exit != 0
		case v.kind == Sidecar:
			start(i)
			ready = v.started
		case v.kind == Init && initialized:
		case v.kind == Init:
			ready = false
			switch {
			case v.over(pod) && v.exit == 0:
				ready = true
			case v.over(pod):
				p.Finished = true
			default:
				start(i)
			}
		default:
			all++
			if v.over(pod) {
				done++
			} else {
				start(i)
			}
		}
	}
	p.Finished = p.Finished || done == all
	return p
}

// decideStop ends the regular containers and the init container that may run, all
// at once, and then the sidecars from the last to the first, since each may need
// those before it. All preStop hooks are called at the beginning. At the deadline
// every container is asked to end.
func decideStop(w world, now time.Time) (p Plan) {
	turn := true // of the next container from the end
	for _, sidecars := range []bool{false, true} {
		blocked := false
		for i := len(w.views) - 1; i >= 0; i-- {
			v := &w.views[i]
			if (v.kind == Sidecar) != sidecars {
				continue
			}
			if v.phase == running {
				if turn || !now.Before(*w.Deadline) {
					p.end(i, v, *w.Deadline, now)
				} else {
					p.preStop(i, v, *w.Deadline, now)
					p.Wait(*w.Deadline)
				}
			}
			blocked = blocked || v.live()
			turn = turn && (!sidecars || !v.live())
		}
		turn = turn && !blocked
	}
	switch {
	case slices.ContainsFunc(w.views, func(v view) bool { return v.live() || v.held }), w.Sandbox == SandboxBusy:
	case w.Sandbox == SandboxNone:
		p.Stopped = true
	case w.SandboxDue.After(now):
		p.Wait(w.SandboxDue)
	default:
		p.TearDown = true // also if none is listed: SetUpPod may have failed half-way
	}
	return p
}

// end brings a running container closer to its end, by a deadline: its preStop
// hook first, then Stop, then Stop again if that did not help.
func (p *Plan) end(i int, v *view, by, now time.Time) {
	if p.preStop(i, v, by, now) {
		return
	}
	switch {
	case v.sent.IsZero():
		p.Stop = append(p.Stop, Timed{i, later(by, now.Add(MinWindow))})
	// After a deadline the container should be dead. Then an earlier one says nothing, also
	// if the deadline is that of a repetition.
	case now.Before(v.sent) && later(by, v.sentAt.Add(MinWindow)).Before(v.sent):
		p.Stop = append(p.Stop, Timed{i, later(by, v.sentAt.Add(MinWindow))})
	case !now.Before(v.sent.Add(KillRetry)):
		p.Stop = append(p.Stop, Timed{i, now})
	default:
		p.Wait(v.sent.Add(KillRetry))
	}
}

// preStop calls or shortens the preStop hook, and reports whether it goes on.
func (p *Plan) preStop(i int, v *view, by, now time.Time) bool {
	if v.hook == hookNone || !now.Before(by) || !v.sent.IsZero() {
		return false
	}
	if v.hook == hookDue || by.Before(v.hookBy) {
		p.Hook = append(p.Hook, Timed{i, by})
	}
	p.Wait(by)
	return true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
