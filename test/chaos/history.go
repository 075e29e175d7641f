// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A history is the record of a run from the API, the process table, and the
// file that the pods' commands write. The functions in check.go judge it.
type history struct {
	// Pods holds the pods that the API has shown on the node or without a node.
	Pods map[types.UID]*life
	// Starts and Ends are the lines that the commands have written.
	Starts, Ends []line
	// Instances are the commands seen in the process table.
	Instances map[instance]time.Time
	// Overlaps are pairs of commands of one container that were seen running at
	// the same time.
	Overlaps []overlap
	// Unknown lists the times at which the node was reported Unknown.
	Unknown []time.Time
	// Began is the time from which the node was Ready.
	Began time.Time
	// Outages are the periods in which the kubelet did not run or could not
	// reach the API.
	Outages []span
}

// A life is the history of a pod in the API.
type life struct {
	Name, App string
	UID       types.UID
	Policy    corev1.RestartPolicy
	Crashes   bool // it crashes on purpose, so restarts are expected
	States    []state
	Forced    time.Time // when the churn asked for its deletion without grace; zero for never
	Gone      time.Time // when it was seen deleted; zero if it still exists
	// Blind is true if the pod disappeared while no watch was open, and its
	// last state could not be found afterwards.
	Blind bool
}

// A state is the state of a pod at a moment.
type state struct {
	At         time.Time
	Phase      corev1.PodPhase
	Bound      bool // to a node
	Deleting   bool
	Reason     string // of its status
	Containers []containerState
}

// A containerState is the state of a container in the pod's status.
type containerState struct {
	Name     string
	Running  bool
	Restarts int32
	Exit     *exit
}

// An exit is the exit of a container.
type exit struct {
	Code, Signal int32
	Reason       string
}

// An instance is a command in the process table: a session that was started for
// one run of a container.
type instance struct {
	UID       types.UID
	Container string
	Run       string // the name of its directory: the restart count
	Session   int
}

// An overlap is a pair of instances of one container that ran at the same time.
type overlap struct {
	At   time.Time
	A, B instance
}

// A line is a line that a command has written about its start, or about its end
// and exit code.
type line struct {
	UID       types.UID
	Container string
	Code      int32
}

// A span is a period.
type span struct{ From, To time.Time }

// last returns the latest state, or nil.
func (l *life) last() *state {
	if len(l.States) == 0 {
		return nil
	}
	return &l.States[len(l.States)-1]
}

// stateOf returns the state of a pod.
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
