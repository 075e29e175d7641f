// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

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

// A world is the input of decide. views are the init containers, the regular
// containers and the ephemeral ones, each in the order of the spec.
type world struct {
	views      []view
	sandbox    SandboxState
	sandboxDue time.Time  // the earliest time of the next SetUpPod or TearDownPod
	deadline   *time.Time // not nil if the pod is being stopped
}

// A deadline is a container with the time by which something must be over.
type deadline struct {
	i  int
	by time.Time
}

// A plan is the output of decide: the actions to take now. The numbers are those
// of views.
type plan struct {
	setUp, tearDown bool
	start           []int
	hook            []deadline // call the preStop hook, or shorten it
	stop            []deadline // call Stop
	// again is the time of the next decision if nothing happens; zero: not needed.
	again time.Time
	// reset says that every container ends and starts again, restarting that a rule
	// is the reason, and restart that all have ended: the runs so far are history.
	reset, restarting, restart bool
	// finished says that the work is done, or can't be: the pod must be stopped.
	finished bool
	// stopped says that nothing runs and that the sandbox is gone.
	stopped bool
}

const (
	// MinWindow is the shortest time between a request to end and the kill.
	MinWindow = 2 * time.Second
	// KillRetry is the time after which a container that should be dead is
	// stopped again.
	KillRetry = 10 * time.Second
)

// decide returns the actions for a pod.
func decide(pod *corev1.PodSpec, w world, now time.Time) plan {
	if w.deadline != nil {
		return decideStop(w, now)
	}
	if p, restarting := decideRestart(pod, w, now); restarting {
		return p
	}
	p := decideRun(pod, w, now)
	if p.finished {
		return plan{finished: true}
	}
	if len(p.start) > 0 && w.sandbox != SandboxNone && w.sandbox != SandboxReady {
		p.start = nil
		if w.sandboxDue.After(now) {
			p.wait(w.sandboxDue)
		} else {
			p.setUp = w.sandbox != SandboxBusy
		}
	}
	return p
}

// decideRestart handles the exits and losses after which all containers start
// again: an exit that a rule with the action RestartAllContainers matches, and the
// loss of the sandbox. A pod that is never restarted ends when its sandbox is lost.
func decideRestart(pod *corev1.PodSpec, w world, now time.Time) (p plan, restarting bool) {
	lost := w.sandbox == SandboxLost && slices.ContainsFunc(w.views, func(v view) bool {
		return v.phase != idle && v.kind != Ephemeral && (v.kind != Regular || !v.over(pod))
	})
	if lost && pod.RestartPolicy == corev1.RestartPolicyNever {
		return plan{finished: true}, true // with finished set, decide ends the pod
	}
	for i := range w.views {
		v := &w.views[i]
		p.restarting = p.restarting || v.phase == ended && podstatus.RestartsPod(v.spec, v.exit)
	}
	if !p.restarting && !lost {
		return plan{}, false
	}
	if lost && decideRun(pod, w, now).finished {
		return plan{}, false // the work was done before
	}
	p.reset, p.restart = true, true
	for i := range w.views {
		v := &w.views[i]
		if v.kind == Ephemeral && !lost {
			continue
		}
		if v.phase == running {
			p.end(i, v, now, now) // without a hook, because no time is left for one
		}
		p.restart = p.restart && !v.live()
	}
	return p, true
}

// decideRun starts the containers of a pod in order and ends those that failed.
func decideRun(pod *corev1.PodSpec, w world, now time.Time) (p plan) {
	start := func(i int) {
		switch v := &w.views[i]; {
		case v.live(), v.held:
		case v.due.After(now):
			p.wait(v.due)
		default:
			p.start = append(p.start, i)
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
				p.finished = true
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
	p.finished = p.finished || done == all
	return p
}

// decideStop ends the regular containers and the init container that may run, all
// at once, and then the sidecars from the last to the first, since each may need
// those before it. All preStop hooks are called at the beginning. At the deadline
// every container is asked to end.
func decideStop(w world, now time.Time) (p plan) {
	turn := true // of the next container from the end
	for _, sidecars := range []bool{false, true} {
		blocked := false
		for i := len(w.views) - 1; i >= 0; i-- {
			v := &w.views[i]
			if (v.kind == Sidecar) != sidecars {
				continue
			}
			if v.phase == running {
				if turn || !now.Before(*w.deadline) {
					p.end(i, v, *w.deadline, now)
				} else {
					p.preStop(i, v, *w.deadline, now)
					p.wait(*w.deadline)
				}
			}
			blocked = blocked || v.live()
			turn = turn && (!sidecars || !v.live())
		}
		turn = turn && !blocked
	}
	switch {
	case slices.ContainsFunc(w.views, func(v view) bool { return v.live() || v.held }), w.sandbox == SandboxBusy:
	case w.sandbox == SandboxNone:
		p.stopped = true
	case w.sandboxDue.After(now):
		p.wait(w.sandboxDue)
	default:
		p.tearDown = true // also if none is listed: SetUpPod may have failed half-way
	}
	return p
}

// end brings a running container closer to its end, by a deadline: its preStop
// hook first, then Stop, then Stop again if that did not help.
func (p *plan) end(i int, v *view, by, now time.Time) {
	if p.preStop(i, v, by, now) {
		return
	}
	switch {
	case v.sent.IsZero():
		p.stop = append(p.stop, deadline{i, later(by, now.Add(MinWindow))})
	// After a deadline the container should be dead. Then an earlier one says nothing, also
	// if the deadline is that of a repetition.
	case now.Before(v.sent) && later(by, v.sentAt.Add(MinWindow)).Before(v.sent):
		p.stop = append(p.stop, deadline{i, later(by, v.sentAt.Add(MinWindow))})
	case !now.Before(v.sent.Add(KillRetry)):
		p.stop = append(p.stop, deadline{i, now})
	default:
		p.wait(v.sent.Add(KillRetry))
	}
}

// preStop calls or shortens the preStop hook, and reports whether it goes on.
func (p *plan) preStop(i int, v *view, by, now time.Time) bool {
	if v.hook == hookNone || !now.Before(by) || !v.sent.IsZero() {
		return false
	}
	if v.hook == hookDue || by.Before(v.hookBy) {
		p.hook = append(p.hook, deadline{i, by})
	}
	p.wait(by)
	return true
}

// wait makes sure that decide is called at that time.
func (p *plan) wait(until time.Time) {
	if p.again.IsZero() || until.Before(p.again) {
		p.again = until
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
