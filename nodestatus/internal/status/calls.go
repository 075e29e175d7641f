// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// A callPhase is the state of one setter or health check.
type callPhase uint8

const (
	idle    callPhase = iota
	awaited           // under way, and a round waits for it
	alone             // under way, and its round has gone on without it
	missed            // alone, and a later round would have called it; see RoundBegan
	arrived           // ended alone with a result that no round has seen yet
)

// A call is the state of one setter or health check of a node.
type call struct {
	phase  callPhase
	slow   bool   // the last call that ended was late
	taken  bool   // a round has had the values of a setter
	after  uint64 // hash of the Node as it has made it last; 0: it has never succeeded
	values string // its last contribution, encoded
	err    error  // of one that has arrived
}

// The errors of functions that gave no result in time.
var (
	ErrLate    = errors.New("did not return in time")
	ErrPending = errors.New("has not returned from an earlier call")
)

// A Plan says what a round does about a setter or health check.
type Plan int

const (
	// Call: call it, and wait.
	Call Plan = iota
	// CallBriefly: call it, and hardly wait: it was late the last time, and many slow
	// nodes must not hold up the rounds of the others.
	CallBriefly
	// Skip: the result of this round is known.
	Skip
)

// plan returns what a round does about function i, and its error if that is Skip.
func (s *State) plan(i int) (Plan, error) {
	switch c := &s.calls[i]; {
	case c.phase == arrived:
		return Skip, c.err
	case c.phase != idle:
		return Skip, ErrPending
	case c.slow:
		return CallBriefly, nil
	}
	return Call, nil
}

// reached takes in that the round has come to function i.
func (s *State) reached(i int) (plan Plan, err error) {
	plan, err = s.plan(i)
	switch c := &s.calls[i]; {
	case plan != Skip:
		c.phase = awaited
	case c.phase == arrived:
		c.phase, c.err = idle, nil
		c.taken = i < s.rules.Setters
	}
	return plan, err
}

// gaveUp takes in that the round no longer waits for function i. It reports false if
// that has returned.
func (s *State) gaveUp(i int) bool {
	if s.calls[i].phase != awaited {
		return false
	}
	s.calls[i].phase = alone
	return true
}

// returned takes in the end of a call, and reports whether a round should follow.
func (s *State) returned(ev Returned) (wake bool) {
	c := &s.calls[ev.Index]
	was, setter := c.phase, ev.Index < s.rules.Setters
	c.phase, c.slow = idle, ev.Late
	changed := false
	if setter && ev.Err == nil {
		changed = s.keep(c, ev.Before, ev.After)
		// A round that has gone on does not have them: the next one has.
		c.taken = c.taken || was == awaited
	}
	switch {
	case was == awaited:
		return false // the round has the result
	case changed: // late values are better than none
		c.phase, c.err = arrived, ErrLate
	case !setter && !ev.Late:
		c.phase, c.err = arrived, ev.Err
	}
	wake = c.phase == arrived || was == missed
	s.woken = s.woken || wake
	return wake
}

// keep keeps the values that a setter has set by making after of before, and reports
// whether they are others than the last ones. A setter that makes the same Node again has
// set the same values.
func (s *State) keep(c *call, before, after *corev1.Node) (changed bool) {
	hash := fingerprint(s.rules.Seed, after, after.Spec)
	if c.after == hash {
		return false
	}
	encoded, _ := contribution(before, after).Marshal() // fails only if Size is wrong
	changed = c.after == 0 || c.values != string(encoded)
	c.after, c.values = hash, string(encoded)
	return changed
}

// LastValues returns a copy of node with the values that setter i set last.
func (s *State) LastValues(i int, node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	last := &corev1.Node{}
	_ = last.Unmarshal([]byte(s.calls[i].values)) // keep has encoded it
	overlay(node, last)
	return node
}

// Busy reports whether a setter or health check is under way.
func (s *State) Busy() bool {
	return slices.ContainsFunc(s.calls, func(c call) bool { return c.phase != idle && c.phase != arrived })
}

// complete reports whether every setter has succeeded once, and the round has its
// values. Before that a value that no setter sets may be the value of one that has not.
func (s *State) complete() bool {
	for i := range s.rules.Setters {
		if !s.calls[i].taken {
			return false
		}
	}
	return true
}
