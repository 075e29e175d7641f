// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

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
	in := world{sandbox: w.Sandbox, sandboxDue: w.SandboxDue, deadline: w.Deadline}
	for _, c := range w.Containers {
		in.views = append(in.views, c.view())
	}
	p := decide(pod, in, now)
	out := Plan{
		SetUp: p.setUp, TearDown: p.tearDown, Start: p.start, Again: p.again,
		Reset: p.reset, Restarting: p.restarting, Restart: p.restart, Finished: p.finished, Stopped: p.stopped,
	}
	for _, d := range p.hook {
		out.Hook = append(out.Hook, Timed{d.i, d.by})
	}
	for _, d := range p.stop {
		out.Stop = append(out.Stop, Timed{d.i, d.by})
	}
	return out
}
