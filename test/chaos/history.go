// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A history is what was seen of a run: in the API, in the process table, and in the
// file that the pods' own commands write. check.go judges it.
type history struct {
	// Pods are those that the API has had on the node, or without one.
	Pods map[types.UID]*life
	// Starts and Ends are the lines that commands have written.
	Starts, Ends []line
	// Instances are the commands that were seen in the process table.
	Instances map[instance]time.Time
	// Overlaps are two commands of one container that were seen to run at one
	// moment.
	Overlaps []overlap
	// Unknown is when the node was reported so.
	Unknown []time.Time
	// Began is since when the node was Ready.
	Began time.Time
	// Outages are when the kubelet did not work, or could not reach the API.
	Outages []span
}

// A life is what became of a pod, as the API has shown it.
type life struct {
	Name, App string
	UID       types.UID
	Policy    corev1.RestartPolicy
	Crashes   bool // it is made to crash, so its restarts are no loss
	States    []state
	Forced    time.Time // when the churn asked for its deletion without grace; zero: never
	Gone      time.Time // when it was seen to be gone; zero: it is there
	// Blind says that it went while nobody could watch, and that its last state
	// could not be found out afterwards either.
	Blind bool
}

// A state is a pod's at a moment.
type state struct {
	At         time.Time
	Phase      corev1.PodPhase
	Bound      bool // to a node
	Deleting   bool
	Reason     string // of its status
	Containers []containerState
}

// A containerState is what the status says of a container.
type containerState struct {
	Name     string
	Running  bool
	Restarts int32
	Exit     *exit
}

// An exit is how a container has ended.
type exit struct {
	Code, Signal int32
	Reason       string
}

// An instance is a command in the process table: a session that was started for a
// run of a container.
type instance struct {
	UID       types.UID
	Container string
	Run       string // its folder's name: the restart count
	Session   int
}

// An overlap is two instances of one container at one moment.
type overlap struct {
	At   time.Time
	A, B instance
}

// A line is one that a command has written: that it starts, or that it ends and
// with which code.
type line struct {
	UID       types.UID
	Container string
	Code      int32
}

// A span is from a moment to another one.
type span struct{ From, To time.Time }

// last returns the newest state, or nil.
func (l *life) last() *state {
	if len(l.States) == 0 {
		return nil
	}
	return &l.States[len(l.States)-1]
}

// stateOf returns what there is to know of a pod's state.
func stateOf(p *corev1.Pod, at time.Time) state {
	s := state{At: at, Phase: p.Status.Phase, Bound: p.Spec.NodeName != "", Deleting: p.DeletionTimestamp != nil, Reason: p.Status.Reason}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			cs := containerState{Name: c.Name, Running: c.State.Running != nil, Restarts: c.RestartCount}
			if t := c.State.Terminated; t != nil {
				cs.Exit = &exit{t.ExitCode, t.Signal, t.Reason}
			}
			s.Containers = append(s.Containers, cs)
		}
	}
	return s
}
