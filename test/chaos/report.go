// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// A report is the result of a run.
type report struct {
	options  options
	version  string
	disk     bool
	faults   map[kind]int
	steps    map[string]int
	failed   map[string]int
	numbers  []number
	verdicts []verdict
	record   *recorder
}

// A number is a counted quantity.
type number struct {
	what string
	n    int
}

func newReport(r *rig, in *injector, o options, verdicts []verdict) *report {
	rep := &report{options: o, version: r.cluster.Version(), disk: r.disk.Mounted(), faults: in.count,
		steps: r.churn.count, failed: r.churn.failed, verdicts: verdicts, record: r.record}
	r.record.mu.Lock()
	defer r.record.mu.Unlock()
	h := &r.record.history
	count := func(what string, n int) { rep.numbers = append(rep.numbers, number{what, n}) }
	var bound, ended, gone, forced, blind, restarts int
	for _, l := range h.Pods {
		last := l.last()
		if last.Bound {
			bound++
		}
		if terminal(last.Phase) {
			ended++
		}
		if !l.Gone.IsZero() {
			gone++
		}
		if !l.Forced.IsZero() {
			forced++
		}
		if l.Blind {
			blind++
		}
		for _, c := range last.Containers {
			restarts += int(c.Restarts)
		}
	}
	strangers := map[types.UID]bool{}
	for i := range h.Instances {
		if h.Pods[i.UID] == nil {
			strangers[i.UID] = true
		}
	}
	count("pods seen in the API", len(h.Pods))
	count("of them bound to the node", bound)
	count("of them that reached a terminal phase", ended)
	count("of them deleted", gone)
	count("of them deleted without grace", forced)
	count("commands seen in the process table", len(h.Instances))
	count("starts that commands wrote", len(h.Starts))
	count("pods whose reported start is wrong by a minute or more", r.record.misdated)
	count("restarts of containers that crash on purpose", restarts)
	count("watch events of pods", r.record.events)
	count("times that the checker had to list again", r.record.relists-1)
	count("last states that it looked up at earlier revisions", r.record.lookedUp)
	count("last states that it could not find", blind)
	count("pods whose command ran, created and deleted while the checker could not watch", len(strangers))
	exits, starts := r.kubelet.ended()
	byItself := map[int]int{}
	for _, e := range exits {
		if !e.ByUs {
			byItself[e.Code]++
		}
	}
	count("starts of the kubelet", starts)
	count("of them for new settings", byItself[75])
	count("of them after an error (settings that make it end, no space to start)", byItself[1])
	for _, reason := range slices.Sorted(maps.Keys(r.record.settings)) {
		count("times that the settings of the Node became "+reason, r.record.settings[reason])
	}
	count("connections of the kubelet through the proxy", r.proxy.dials)
	count("of them reset in the middle", r.proxy.resets)
	count("times that the Node was reported Unknown", len(h.Unknown))
	return rep
}

// saveLogs copies the logs of the control plane, which are deleted with it.
func (r *rig) saveLogs() {
	if r.cluster == nil {
		return
	}
	var components []harness.Component
	if err := r.host.try(func() { components = r.cluster.Components(r.host) }); err != nil {
		r.log("no logs of the control plane: %v", err)
		return
	}
	for _, c := range components {
		data, err := os.ReadFile(c.Log)
		if err == nil {
			err = os.WriteFile(filepath.Join(r.dir, c.Name+".log"), data, 0o600)
		}
		if err != nil {
			r.log("no log of %s: %v", c.Name, err)
		}
	}
}

// ok reports whether all rules held.
func (rep *report) ok() bool {
	return !slices.ContainsFunc(rep.verdicts, func(v verdict) bool { return len(v.Findings) > 0 })
}

// text returns the report as text.
func (rep *report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nchaos: seed %d, %v, Kubernetes %s\n", rep.options.seed, rep.options.duration, rep.version)
	if !rep.disk {
		fmt.Fprintln(&b, "NOT COVERED: a full disk, which requires permission to mount a file system")
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nfaults\t\n")
	table(t, rep.faults)
	fmt.Fprintf(t, "\nchanges by users and controllers\tdone\tfailed\n")
	for _, what := range slices.Sorted(maps.Keys(union(rep.steps, rep.failed))) {
		fmt.Fprintf(t, "  %s\t%d\t%d\n", what, rep.steps[what], rep.failed[what])
	}
	fmt.Fprintf(t, "\nseen\t\n")
	for _, n := range rep.numbers {
		fmt.Fprintf(t, "  %s\t%d\n", n.what, n.n)
	}
	fmt.Fprintf(t, "\nrule\texamined\tbroken\n")
	for _, v := range rep.verdicts {
		fmt.Fprintf(t, "  %s\t%d\t%d\n", v.Rule, v.Examined, len(v.Findings))
	}
	_ = t.Flush() // writes to memory, which can't fail
	rep.findings(&b)
	if rep.ok() {
		fmt.Fprintln(&b, "\nnothing was lost, doubled or left behind")
	} else {
		fmt.Fprintln(&b, "\nrules were broken")
	}
	return b.String()
}

func table[K ~string](w io.Writer, counts map[K]int) {
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(w, "  %s\t%d\n", key, counts[key])
	}
}

func union(a, b map[string]int) map[string]int {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// findings writes the findings, each with the timeline of its pod.
func (rep *report) findings(w io.Writer) {
	told := map[types.UID]bool{"": true}
	for _, v := range rep.verdicts {
		for _, f := range v.Findings {
			fmt.Fprintf(w, "\nBROKEN: %s: ", f.Rule)
			if f.UID != "" {
				fmt.Fprintf(w, "pod %s (%s): ", rep.record.name(f.UID), f.UID)
			}
			fmt.Fprintln(w, f.Text)
			if !told[f.UID] {
				told[f.UID] = true
				for _, n := range rep.record.timeline(f.UID) {
					fmt.Fprintf(w, "  %s  %s\n", n.at.UTC().Format("15:04:05.000"), n.text)
				}
			}
		}
	}
}

func (r *recorder) name(uid types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.history.Pods[uid]; l != nil {
		return l.Name
	}
	return "not seen in the API"
}

// before is the time before a pod at which its timeline begins.
const before = 5 * time.Second

// timeline returns the events of a pod, and the concurrent events that concern
// all pods.
func (r *recorder) timeline(uid types.UID) (events []note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var from, to time.Time
	extend := func(at time.Time) {
		if from.IsZero() || at.Before(from) {
			from = at
		}
		if at.After(to) {
			to = at
		}
	}
	if l := r.history.Pods[uid]; l != nil {
		for _, s := range l.States {
			events = append(events, note{s.At, uid, "API: " + s.String()})
			extend(s.At)
		}
		if !l.Gone.IsZero() {
			events = append(events, note{l.Gone, uid, "API: gone"})
			extend(l.Gone)
		}
	}
	for _, n := range r.notes {
		if n.uid == uid {
			extend(n.at)
		}
	}
	for _, n := range r.notes {
		if n.uid == uid || n.uid == "" && n.at.After(from.Add(-before)) && n.at.Before(to.Add(time.Second)) {
			events = append(events, n)
		}
	}
	slices.SortStableFunc(events, func(a, b note) int { return a.at.Compare(b.at) })
	return events
}

func (s state) String() string {
	text := string(s.Phase)
	if s.Reason != "" {
		text += " (" + s.Reason + ")"
	}
	if !s.Bound {
		text += ", not bound"
	}
	if s.Deleting {
		text += ", being deleted"
	}
	for _, c := range s.Containers {
		text += fmt.Sprintf("; %s: running=%t, restarts=%d", c.Name, c.Running, c.Restarts)
		if c.Exit != nil {
			text += fmt.Sprintf(", exit %d (signal %d, %s)", c.Exit.Code, c.Exit.Signal, c.Exit.Reason)
		}
	}
	return text
}
