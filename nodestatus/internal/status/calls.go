// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	corev1 "k8s.io/api/core/v1"
)

// A callPhase is the state of one setter or health check.
type callPhase uint8

const (
	idle    callPhase = iota
	awaited           // under way, and a round waits for it
	alone             // under way, and its round has gone on without it
	missed            // alone, and a later round would have called it
	arrived           // ended alone with a result that no round has seen yet
)

// A call is the state of one setter or health check of a node.
type call struct {
	phase     callPhase
	slow      bool   // the last call that ended was late
	succeeded bool   // a setter has succeeded once
	values    string // its last contribution, encoded
	err       error  // of a check that has arrived
}

// A Plan says what a round does about a setter or health check.
type Plan int

const (
	// Call: call it, and wait.
	Call Plan = iota
	// CallBriefly: call it, and hardly wait: it was late the last time, and many slow
	// nodes must not hold up the rounds of the others.
	CallBriefly
	// Pending: an earlier call is under way.
	Pending
	// Take: an earlier call has ended, and this round has its result.
	Take
)

// Plan returns what a round does about function i.
func (s *State) Plan(i int) Plan {
	switch c := &s.calls[i]; {
	case c.phase == arrived:
		return Take
	case c.phase != idle:
		return Pending
	case c.slow:
		return CallBriefly
	}
	return Call
}

// Busy reports whether a setter or health check is under way.
func (s *State) Busy() bool {
	for _, c := range s.calls {
		if c.phase != idle && c.phase != arrived {
			return true
		}
	}
	return false
}

// Awaited reports whether a round waits for function i.
func (s *State) Awaited(i int) bool { return s.calls[i].phase == awaited }

// Arrived returns the error of a check whose plan is Take.
func (s *State) Arrived(i int) error { return s.calls[i].err }

// LastValues returns a copy of node with the values that setter i set last.
func (s *State) LastValues(i int, node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	if c := &s.calls[i]; c.succeeded {
		last := &corev1.Node{}
		_ = last.Unmarshal([]byte(c.values)) // keep has encoded it
		overlay(node, last)
	}
	return node
}

// keep keeps the values that setter i has set by making after of before.
func (s *State) keep(i int, before, after *corev1.Node) {
	encoded, _ := contribution(before, after).Marshal() // fails only if Size is wrong
	if c := &s.calls[i]; !c.succeeded || c.values != string(encoded) {
		c.succeeded, c.values = true, string(encoded)
	}
}

// complete reports whether every setter has succeeded once. Before that a value that no
// setter sets may be the value of one that has not.
func (s *State) complete() bool {
	for i := range s.rules.Setters {
		if !s.calls[i].succeeded {
			return false
		}
	}
	return true
}

// returned takes in the end of a call, and reports whether a round should follow.
func (s *State) returned(ev Returned) (wake bool) {
	c := &s.calls[ev.Index]
	was := c.phase
	c.phase, c.slow = idle, ev.Late
	if was == awaited {
		return false // the round has the result
	}
	setter := ev.Index < s.rules.Setters
	switch {
	case setter && ev.Err == nil: // late values are better than none
		s.keep(ev.Index, ev.Before, ev.After)
		c.phase = arrived
	case !setter && !ev.Late:
		c.phase, c.err = arrived, ev.Err
	}
	return c.phase == arrived || was == missed
}
