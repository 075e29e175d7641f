// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A phase is what the newest run of a container does.
type phase uint8

const (
	idle    phase = iota // it has not been started, or its start has failed
	running              // its shim lives
	ended                // nothing of it runs, and how it ended is known
)

// A view is what next has to know of one container.
type view struct {
	spec *corev1.Container
	init bool
	phase
	// exit is the exit code, of one that ended.
	exit int32
	// started says of one that runs that its postStart hook is through and that
	// its startup probe has succeeded.
	started bool
	// due is when it may be started, if it is not running.
	due time.Time
}

func (v *view) sidecar() bool { return v.init && podstatus.IsSidecar(v.spec) }

// over reports whether the container has ended and won't be started again.
func (v *view) over(pod *corev1.PodSpec) bool {
	if v.phase != ended {
		return false
	}
	if v.init && !v.sidecar() && v.exit == 0 {
		return true // it has done what it was for, whatever the restart policy
	}
	return !podstatus.ShouldRestart(pod, v.spec, v.exit)
}

// A plan is what to do with a pod now. The numbers are those of views.
type plan struct {
	start []int
	// stop are the containers to ask to end, kill those whose time is up.
	stop, kill []int
	// again is when to ask next once more if nothing happens; zero: not needed.
	again time.Time
	// finished says that the work is done, or can't be: what still runs is to
	// be stopped.
	finished bool
	// stopped says of a pod that is being stopped that nothing of it runs.
	stopped bool
}

// next decides what to do with a pod. views are the init containers and then
// the others, each in the order of the spec. deadline is not nil if the pod is
// being stopped.
func next(pod *corev1.PodSpec, views []view, deadline *time.Time, now time.Time) plan {
	if deadline != nil {
		return nextStop(views, *deadline, now)
	}
	var p plan
	start := func(i int) {
		if due := views[i].due; due.After(now) {
			p.wait(due)
			return
		}
		p.start = append(p.start, i)
	}
	// Once a regular container has run, the init containers are history; only
	// sidecars go on.
	initialized := slices.ContainsFunc(views, func(v view) bool { return !v.init && v.phase != idle })
	ready := true // for what comes next in the order
	done, regular := 0, 0
	for i := range views {
		v := &views[i]
		if !ready && !initialized {
			continue
		}
		switch {
		case v.sidecar():
			if v.phase != running {
				start(i)
			}
			ready = ready && v.phase == running && v.started
		case v.init && initialized:
		case v.init:
			ready = false
			switch {
			case v.over(pod) && v.exit == 0:
				ready = true
			case v.over(pod):
				p.finished = true
			case v.phase != running:
				start(i)
			}
		default:
			regular++
			switch {
			case v.over(pod):
				done++
			case v.phase != running:
				start(i)
			}
		}
	}
	if p.finished = p.finished || regular > 0 && done == regular; p.finished {
		return plan{finished: true}
	}
	return p
}

// nextStop ends the regular containers and the init container that may run, all
// at once, and then the sidecars from the last to the first, since each may need
// those before it. At the deadline it is over for all of them.
func nextStop(views []view, deadline, now time.Time) plan {
	var p plan
	for i := range views {
		if views[i].phase == running && !views[i].sidecar() {
			p.stop = append(p.stop, i)
		}
	}
	for i := len(views) - 1; i >= 0 && len(p.stop) == 0; i-- {
		if views[i].phase == running {
			p.stop = append(p.stop, i)
		}
	}
	if len(p.stop) == 0 {
		return plan{stopped: true}
	}
	if now.Before(deadline) {
		p.wait(deadline)
		return p
	}
	p.stop = nil
	for i := range views {
		if views[i].phase == running {
			p.kill = append(p.kill, i)
		}
	}
	return p
}

// wait makes sure that next is asked at that time.
func (p *plan) wait(until time.Time) {
	if p.again.IsZero() || until.Before(p.again) {
		p.again = until
	}
}
