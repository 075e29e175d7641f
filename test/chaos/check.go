// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A finding is a violation of a rule.
type finding struct {
	Rule string
	UID  types.UID // of the pod; "" if it concerns no pod
	Text string
}

// A verdict is the result of checking a rule.
type verdict struct {
	Rule     string
	Examined int // number of cases that could have violated it
	Findings []finding
}

// These rules hold at any time of a run.
const (
	ruleDoubled   = "no container runs twice at a time"
	ruleOnce      = "a command that must run once starts once"
	ruleRestarted = "a command that has not ended is not started again"
	rulePhase     = "phases go forward only"
	ruleEnd       = "a pod goes with a terminal phase"
	ruleExit      = "the exit code in the API is that of the command"
	ruleUnknown   = "the Node is not Unknown while it could be heard"
)

// check judges a history. It may be called during a run, because later events
// cannot turn a violation into a valid history.
func check(h *history) []verdict {
	return []verdict{
		checkDoubled(h), checkOnce(h), checkRestarted(h), checkPhases(h), checkEnds(h), checkExits(h), checkUnknown(h),
	}
}

func (v *verdict) add(uid types.UID, format string, args ...any) {
	v.Findings = append(v.Findings, finding{v.Rule, uid, fmt.Sprintf(format, args...)})
}

func checkDoubled(h *history) verdict {
	v := verdict{Rule: ruleDoubled, Examined: len(h.Instances)}
	for _, o := range h.Overlaps {
		v.add(o.A.UID, "container %s: run %s (session %d) and run %s (session %d) at the same time",
			o.A.Container, o.A.Run, o.A.Session, o.B.Run, o.B.Session)
	}
	return v
}

// A containerKey names a container of a pod.
type containerKey struct {
	uid  types.UID
	name string
}

// startCounts returns the number of starts of the commands of containers: the
// larger of the counts from their output and from the process table.
func startCounts(h *history) map[containerKey]int {
	written, seen := map[containerKey]int{}, map[containerKey]int{}
	for _, l := range h.Starts {
		written[containerKey{l.UID, l.Container}]++
	}
	for i := range h.Instances {
		seen[containerKey{i.UID, i.Container}]++
	}
	for key, n := range seen {
		written[key] = max(written[key], n)
	}
	return written
}

func checkOnce(h *history) verdict {
	v := verdict{Rule: ruleOnce}
	for key, n := range startCounts(h) {
		l := h.Pods[key.uid]
		if l == nil || l.Policy != corev1.RestartPolicyNever {
			continue
		}
		v.Examined++
		if n > 1 {
			v.add(key.uid, "container %s was started %d times", key.name, n)
		}
	}
	return v
}

// checkRestarted checks that a service that does not end on its own is not
// restarted.
func checkRestarted(h *history) verdict {
	v := verdict{Rule: ruleRestarted}
	counts := startCounts(h)
	for uid, l := range h.Pods {
		if l.Policy == corev1.RestartPolicyNever || l.Crashes || l.last() == nil {
			continue
		}
		v.Examined++
		for _, c := range l.last().Containers {
			if n := counts[containerKey{uid, c.Name}]; n > 1 || c.Restarts > 0 {
				v.add(uid, "container %s was started %d times, but the API has %d restarts", c.Name, n, c.Restarts)
			}
		}
	}
	return v
}

// order lists the phases in their order.
var order = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}

func terminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

func checkPhases(h *history) verdict {
	v := verdict{Rule: rulePhase}
	for uid, l := range h.Pods {
		for i := 1; i < len(l.States); i++ {
			v.Examined++
			from, to := l.States[i-1].Phase, l.States[i].Phase
			if terminal(from) && to != from || slices.Index(order, to) < slices.Index(order, from) {
				v.add(uid, "it was %s and then %s", from, to)
			}
		}
	}
	return v
}

func checkEnds(h *history) verdict {
	v := verdict{Rule: ruleEnd}
	for uid, l := range h.Pods {
		last := l.last()
		if l.Gone.IsZero() || !l.Forced.IsZero() || l.Blind || last == nil || !last.Bound {
			continue
		}
		// The API server removes a pod without a node at once, even if the pod
		// is bound before the removal is stored. Such a pod was never marked
		// for deletion, so no kubelet could act on it.
		if !slices.ContainsFunc(l.States, func(s state) bool { return s.Deleting || len(s.Containers) > 0 }) {
			continue
		}
		v.Examined++
		if !terminal(last.Phase) {
			v.add(uid, "it was deleted in phase %s", last.Phase)
		}
	}
	return v
}

// unknownExit is the reason of an exit that the kubelet did not observe.
const unknownExit = "ContainerStatusUnknown"

// checkExits compares the exit codes in the API with those that the commands
// have written.
func checkExits(h *history) verdict {
	v := verdict{Rule: ruleExit}
	started := startCounts(h)
	ended := map[containerKey][]int32{}
	for _, l := range h.Ends {
		key := containerKey{l.UID, l.Container}
		ended[key] = append(ended[key], l.Code)
	}
	for uid, l := range h.Pods {
		last := l.last()
		if last == nil || !l.Forced.IsZero() {
			continue
		}
		for _, c := range last.Containers {
			if c.Exit == nil {
				continue
			}
			v.Examined++
			key := containerKey{uid, c.Name}
			wrote := ended[key]
			switch {
			case c.Exit.Reason == unknownExit && started[key] > 0:
				v.add(uid, "container %s has run, but the API has no exit code", c.Name)
			case c.Exit.Code == 0 && len(wrote) == 0:
				v.add(uid, "container %s succeeded according to the API, but not according to its own output", c.Name)
			case c.Exit.Signal == 0 && c.Exit.Reason != "StartError" && len(wrote) > 0 && !slices.Contains(wrote, c.Exit.Code):
				v.add(uid, "container %s wrote the exit codes %v, but the API has %d, %s", c.Name, wrote, c.Exit.Code, c.Exit.Reason)
			}
		}
	}
	return v
}

// grace is the time without a heartbeat after which the controller manager
// reports a node as Unknown.
const grace = 50 * time.Second

// recovery is the time after an outage within which the kubelet renews its
// lease: an interval of 10 s, and a call that hung at the end of the outage.
const recovery = 20 * time.Second

func checkUnknown(h *history) verdict {
	v := verdict{Rule: ruleUnknown, Examined: 1}
	for _, at := range h.Unknown {
		if heard, ok := lastHeard(h.Began, h.Outages, at); ok && at.Before(heard.Add(grace)) {
			v.add("", "Unknown at %s, although it must have sent a heartbeat at %s", at.Format(time.TimeOnly), heard.Format(time.TimeOnly))
		}
	}
	return v
}

// lastHeard returns the last moment in [from, before) at which the node must
// have sent a heartbeat, given its outages.
func lastHeard(from time.Time, outages []span, before time.Time) (heard time.Time, ok bool) {
	sorted := slices.SortedFunc(slices.Values(outages), func(a, b span) int { return a.From.Compare(b.From) })
	// from is the start of a period without outage.
	well := func(to time.Time) {
		if to.Sub(from) >= recovery {
			heard = to.Add(-recovery)
		}
	}
	for _, o := range sorted {
		if o.From.After(before) {
			break
		}
		if o.From.After(from) {
			well(o.From)
		}
		if o.To.After(from) {
			from = o.To
		}
	}
	if from.Before(before) {
		well(before)
	}
	return heard, !heard.IsZero()
}
