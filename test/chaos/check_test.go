// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

// ended returns a history with one pod. Its only command ran once and ended
// with the given code, according to all sources, and then the pod was deleted.
func ended(code int32) *history {
	phase := corev1.PodSucceeded
	if code != 0 {
		phase = corev1.PodFailed
	}
	return &history{
		Began: t0,
		Pods: map[types.UID]*life{"u": {
			Name: "p", UID: "u", Policy: corev1.RestartPolicyNever, Gone: at(9),
			States: []state{
				{At: at(0), Phase: corev1.PodPending},
				{At: at(1), Phase: corev1.PodPending, Bound: true},
				{At: at(2), Phase: corev1.PodRunning, Bound: true, Containers: []containerState{{Name: "c", Running: true}}},
				{At: at(3), Phase: phase, Bound: true, Containers: []containerState{{Name: "c", Exit: &exit{Code: code, Reason: "Completed"}}}},
				{At: at(4), Phase: phase, Bound: true, Deleting: true, Containers: []containerState{{Name: "c", Exit: &exit{Code: code, Reason: "Completed"}}}},
			},
		}},
		Starts:    []line{{UID: "u", Container: "c"}},
		Ends:      []line{{UID: "u", Container: "c", Code: code}},
		Instances: map[instance]time.Time{{"u", "c", "0", 7}: at(2)},
	}
}

// running returns a history with one pod whose command is still running.
func running() *history {
	h := ended(0)
	p := h.Pods["u"]
	p.Policy, p.Gone, p.States, h.Ends = corev1.RestartPolicyAlways, time.Time{}, p.States[:3], nil
	return h
}

// broken returns the rules that a history violates.
func broken(h *history) (rules []string) {
	for _, v := range check(h) {
		if len(v.Findings) > 0 {
			rules = append(rules, v.Rule)
		}
	}
	return rules
}

func TestWhatIsAsItShouldBe(t *testing.T) {
	for name, h := range map[string]*history{"ended well": ended(0), "failed": ended(3), "runs": running(), "nothing": {}} {
		if rules := broken(h); len(rules) > 0 {
			t.Errorf("%s: broken: %q", name, rules)
		}
	}
	for _, v := range check(ended(0)) {
		if v.Examined == 0 && v.Rule != ruleRestarted {
			t.Errorf("nothing was examined for the rule that %s", v.Rule)
		}
	}
	for _, v := range check(running()) {
		if v.Examined == 0 && v.Rule == ruleRestarted {
			t.Errorf("nothing was examined for the rule that %s", v.Rule)
		}
	}
}

// Each kind of violation is found and not mistaken for another one. Histories
// that only look like violations are not reported.
func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		history *history
		change  func(h *history, p *life)
		want    string // the violated rule; "" for none
	}{
		"two at a time": {running(), func(h *history, _ *life) {
			h.Overlaps = []overlap{{at(5), instance{"u", "c", "0", 7}, instance{"u", "c", "1", 8}}}
		}, ruleDoubled},
		"a job starts again, by the process table": {ended(0), func(h *history, _ *life) {
			h.Instances[instance{"u", "c", "0", 8}] = at(5)
		}, ruleOnce},
		"a job starts again, by its own account": {ended(0), func(h *history, _ *life) {
			h.Starts = append(h.Starts, h.Starts[0])
		}, ruleOnce},
		"a service starts again": {running(), func(h *history, _ *life) {
			h.Instances[instance{"u", "c", "1", 8}] = at(5)
		}, ruleRestarted},
		"a service is restarted, by the API": {running(), func(_ *history, p *life) {
			p.last().Containers[0].Restarts = 1
		}, ruleRestarted},
		"a service that crashes is restarted": {running(), func(h *history, p *life) {
			p.Crashes, p.last().Containers[0].Restarts = true, 1
			h.Starts = append(h.Starts, h.Starts[0])
		}, ""},
		"back to Pending": {running(), func(_ *history, p *life) {
			p.States = append(p.States, p.States[1])
		}, rulePhase},
		"from Failed to Succeeded": {ended(0), func(_ *history, p *life) {
			p.States[3].Phase = corev1.PodFailed
		}, rulePhase},
		"alive again": {running(), func(h *history, p *life) {
			p.States = append(p.States, ended(0).Pods["u"].States[3], p.States[2])
			h.Ends = ended(0).Ends
		}, rulePhase},
		"gone while it ran": {running(), func(_ *history, p *life) {
			p.States[2].Deleting, p.Gone = true, at(9)
		}, ruleEnd},
		"gone without an end, and never marked": {running(), func(_ *history, p *life) {
			p.Gone = at(9)
		}, ruleEnd},
		"gone while it ran, by force": {running(), func(_ *history, p *life) {
			p.Gone, p.Forced = at(9), at(8)
		}, ""},
		"gone while no watch was open": {running(), func(_ *history, p *life) {
			p.Gone, p.Blind = at(9), true
		}, ""},
		"gone before it was bound": {ended(0), func(h *history, p *life) {
			p.States, h.Starts, h.Instances = p.States[:1], nil, nil
		}, ""},
		"bound when it was already being removed": {ended(0), func(h *history, p *life) {
			p.States, h.Starts, h.Instances = p.States[:2], nil, nil
		}, ""},
		"an exit code is lost": {ended(0), func(_ *history, p *life) {
			for i := 3; i < 5; i++ {
				p.States[i].Phase = corev1.PodFailed
				p.States[i].Containers[0].Exit = &exit{Code: 137, Reason: unknownExit}
			}
		}, ruleExit},
		"no exit is known for a command that did not run": {ended(0), func(h *history, p *life) {
			h.Starts, h.Ends, h.Instances = nil, nil, nil
			for i := 3; i < 5; i++ {
				p.States[i].Phase = corev1.PodFailed
				p.States[i].Containers[0].Exit = &exit{Code: 137, Reason: unknownExit}
			}
		}, ""},
		"an exit code is made up": {ended(0), func(h *history, _ *life) { h.Ends = nil }, ruleExit},
		"another exit code":       {ended(3), func(h *history, _ *life) { h.Ends[0].Code = 4 }, ruleExit},
		"killed after it wrote that it ends": {ended(3), func(h *history, p *life) {
			p.last().Containers[0].Exit = &exit{Code: 137, Signal: 9, Reason: "Error"}
		}, ""},
		"Unknown without a reason": {running(), func(h *history, _ *life) { h.Unknown = []time.Time{at(100)} }, ruleUnknown},
		"Unknown after a long outage": {running(), func(h *history, _ *life) {
			h.Unknown, h.Outages = []time.Time{at(100)}, []span{{at(30), at(99)}}
		}, ""},
		"Unknown although there was time to be heard": {running(), func(h *history, _ *life) {
			h.Unknown, h.Outages = []time.Time{at(100)}, []span{{at(30), at(60)}, {at(85), at(99)}}
		}, ruleUnknown},
		"Unknown after outages without a pause": {running(), func(h *history, _ *life) {
			h.Unknown, h.Outages = []time.Time{at(100)}, []span{{at(60), at(90)}, {at(30), at(59)}, {at(35), at(50)}, {at(95), at(99)}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tc.change(tc.history, tc.history.Pods["u"])
			got := broken(tc.history)
			if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || got[0] != tc.want) {
				t.Errorf("broken: %q, want %q", got, tc.want)
			}
		})
	}
}

func TestParseLines(t *testing.T) {
	starts, ends := parseLines("start u c\nend u c 3\nstart v init 12:00\n\nend u\nend v c x\n")
	if len(starts) != 2 || starts[1] != (line{UID: "v", Container: "init"}) {
		t.Errorf("starts: %v", starts)
	}
	if len(ends) != 1 || ends[0] != (line{"u", "c", 3}) {
		t.Errorf("ends: %v", ends)
	}
}
