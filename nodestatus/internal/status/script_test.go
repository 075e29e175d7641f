// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"flag"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var update = flag.Bool("update", false, "write what the scripts of testdata decide into them")

// TestScripts runs the stories of testdata. Each line is an event, and after the arrow
// the decision that follows: the phase, the next request, and the news. testdata/README
// has the events.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := &script{T: t, rules: Rules{Interval: 10 * time.Second, Report: 5 * time.Minute, Grace: 40 * time.Second, Seed: maphash.MakeSeed()}}
			var out []string
			for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
				event, want, _ := strings.Cut(line, " -> ")
				if event = strings.TrimSpace(event); event == "" || event[0] == '#' {
					out = append(out, line)
					continue
				}
				got := w.run(strings.Fields(event))
				out = append(out, fmt.Sprintf("%-28s -> %s", event, got))
				if got != strings.TrimSpace(want) && !*update {
					t.Errorf("%s:%d: %s: %s, want %s", file, i+1, event, got, want)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(strings.Join(out, "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// script is a node, and the Node that the API server has.
type script struct {
	*testing.T
	rules   Rules
	state   *State
	now     time.Duration
	server  *corev1.Node
	version int
	uid     int
	body    []byte
	created *corev1.Node // what was sent
	stored  *corev1.Node // what the API server has made of it
	gone    *corev1.Node // what was deleted last
	slept   bool         // before the next round
}

func (w *script) apply(ev Event) string {
	w.Helper()
	news, err := w.state.Apply(w.now, ev)
	if err := w.state.Check(); err != nil {
		w.Errorf("after %T: %v", ev, err)
	}
	do, cause := w.state.Next(w.now)
	parts := []string{w.state.Phase().String(), do.String()}
	if cause != "" {
		parts[1] += "(" + string(cause) + ")"
	}
	if wait := w.state.wait(w.now); wait > 0 && do == Nothing {
		parts = append(parts, "waits")
	}
	for what, said := range map[string]bool{
		"+wake": news.Wake, "+deleted": news.Deleted != "", "+replaced": news.Replaced != "", "+created": news.Created,
		"+adopted": news.Registered != nil && !news.Created, "+recovered": news.Recovered > 0, "+spec": news.Spec != nil,
		"+rebooted": news.Reboot[0] != "", "+noPods": news.NoPods, "+counts": news.Counts, "+leftOut": len(news.LeftOut) > 0, "+error": err != nil,
	} {
		if said {
			parts = append(parts, what)
		}
	}
	for _, c := range news.Conditions {
		if c.Condition.Type == corev1.NodeReady {
			parts = append(parts, fmt.Sprintf("+ready %s->%s", c.From, c.Condition.Status))
		}
	}
	slices.Sort(parts[2:])
	return strings.Join(parts, " ")
}

// serve makes node what the API server has.
func (w *script) serve(node *corev1.Node, created bool) *corev1.Node {
	w.version++
	if created {
		w.uid++
	}
	if w.server = node.DeepCopy(); w.uid > 0 {
		w.server.UID = types.UID(fmt.Sprint("u", w.uid))
	}
	w.server.ResourceVersion = fmt.Sprint(w.version)
	return w.server
}

// show describes what the API server has.
func (w *script) show() string {
	if w.server == nil {
		return "nothing"
	}
	var parts []string
	for key, value := range w.server.Labels {
		parts = append(parts, key+"="+value)
	}
	for _, taint := range w.server.Spec.Taints {
		parts = append(parts, "taint:"+taint.Key)
	}
	if ready := FindCondition(w.server.Status.Conditions, corev1.NodeReady); ready != nil {
		parts = append(parts, "Ready="+string(ready.Status)+":"+ready.Reason)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

var verdicts = map[string]Verdict{"away": Away, "refused": Refused, "gone": Gone, "other": Other, "hungUp": HungUp}

func (w *script) run(words []string) string {
	w.Helper()
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch words[0] {
	case "rules":
		for _, rule := range words[1:] {
			switch rule {
			case "setter":
				w.rules.Setters++
			case "check":
				w.rules.Checks++
			case "reregister":
				w.rules.Reregister = true
			case "credentials":
				w.rules.NodeCredentials = true
			case "taint":
				w.rules.KeepTaints = []corev1.Taint{{Key: "kept", Effect: corev1.TaintEffectNoSchedule}}
			default:
				w.Fatalf("no rule %s", rule)
			}
		}
		s := New(&w.rules)
		w.state = &s
		return "ok"
	case "at":
		at, err := time.ParseDuration(arg(1))
		if err != nil {
			w.Fatal(err)
		}
		w.now = at
		return "ok"
	case "server":
		return w.show()
	case "live":
		if err := w.state.Live(w.now, 70*time.Second); err != nil {
			return err.Error()
		}
		return "alive"
	case "agreed":
		return fmt.Sprintf("%d of %d", w.state.Agreed(), w.state.Rounds())
	case "plan":
		var plans []string
		for i := range w.state.calls {
			plan, err := w.state.plan(i)
			word := [...]string{"call", "briefly", "take"}[plan]
			if errors.Is(err, ErrPending) {
				word = "pending"
			}
			plans = append(plans, word)
		}
		return strings.Join(plans, " ")
	case "round":
		return w.round(words[1:])
	case "returned":
		var i int
		_, _ = fmt.Sscan(arg(1), &i)
		ev := Returned{Index: i, Late: arg(2) == "late"}
		if arg(3) == "failed" {
			ev.Err = errors.New("failed")
		}
		if i < w.rules.Setters && ev.Err == nil {
			ev.Before = template()
			ev.After = w.set(i, template(), arg(3))
		}
		return w.apply(ev)
	case "sent":
		do, cause := w.state.Next(w.now)
		switch do {
		case Create:
			w.created, w.body = w.state.Creation(metav1.NewTime(time.Unix(0, 0).Add(w.now))), nil
		case Patch:
			w.body = w.state.StatusPatch(metav1.NewTime(time.Unix(0, 0).Add(w.now)))
		case Taint:
			w.body = w.state.TaintPatch()
		}
		return w.apply(Sent{Do: do, Cause: cause})
	case "stored":
		if w.body != nil {
			w.serve(apply(w.T, w.server, w.body), false)
			return "ok"
		}
		w.stored = w.serve(w.created, true)
		return "ok"
	case "created":
		node := w.stored
		if w.stored = nil; node == nil {
			node = w.serve(w.created, true)
		}
		return w.apply(Answered{Node: node})
	case "found":
		return w.apply(Answered{Node: w.server.DeepCopy(), Found: true})
	case "written":
		node := apply(w.T, w.server, w.body)
		if key, value, ok := strings.Cut(arg(1), "="); ok { // by an admission webhook
			node.Labels[key] = value
		}
		return w.apply(Answered{Node: w.serve(node, false).DeepCopy(), Draw: 0.5})
	case "tainted":
		return w.apply(Answered{Node: w.serve(apply(w.T, w.server, w.body), false).DeepCopy()})
	case "failed":
		retryAfter, _ := time.ParseDuration(arg(2))
		return w.apply(Failed{Verdict: verdicts[arg(1)], Err: errors.New(arg(1)), RetryAfter: retryAfter, Committed: arg(2) == "committed", Draw: 0.5})
	case "wait":
		low, high := 100*time.Millisecond, 200*time.Millisecond
		if wait := w.state.wait(w.now); wait < low || wait > high {
			return wait.String()
		}
		return "soon"
	case "edit": // by another client
		node := w.server.DeepCopy()
		switch key, value, _ := strings.Cut(arg(1), "="); key {
		case "Ready":
			*FindCondition(node.Status.Conditions, corev1.NodeReady) = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionStatus(value), Reason: "NodeStatusUnknown"}
		case "podCIDR":
			node.Spec.PodCIDR = value
		case "taints":
			node.Spec.Taints = nil
		default:
			node.Labels[key] = value
		}
		w.serve(node, false)
		return "ok"
	case "install": // by another client, with the fields that an earlier process of ours has written
		node := template()
		node.Labels[arg(1)] = "x"
		node.ManagedFields = []metav1.ManagedFieldsEntry{managed(fieldManager, "status", `{"f:metadata":{"f:labels":{"f:`+arg(1)+`":{}}}}`)}
		w.serve(node, true)
		return "ok"
	case "add": // by another process of ours
		node := w.server.DeepCopy()
		node.Labels[arg(1)] = "x"
		node.ManagedFields = []metav1.ManagedFieldsEntry{managed(fieldManager, "status", `{"f:metadata":{"f:labels":{"f:`+arg(1)+`":{}}}}`)}
		w.serve(node, false)
		return "ok"
	case "delete":
		w.gone, w.server = w.server, nil
		return "ok"
	case "event":
		if arg(1) == "deleted" {
			return w.apply(Shown{Node: w.gone, Deleted: true})
		}
		return w.apply(Shown{Node: w.server.DeepCopy()})
	case "asked":
		return w.apply(Asked{})
	case "slept":
		w.slept = true
		return "ok"
	case "gate":
		return w.apply(GateAnswered{Closed: arg(1) == "closed"})
	case "notReady":
		return w.apply(NotReadySet{Failure: &Failure{Field: "SetNotReady", Check: true, Reason: "Draining"}})
	}
	w.Fatalf("no event %s", words[0])
	return ""
}

// set makes what setter i makes of node: a label, a taint and its own Ready condition.
func (w *script) set(i int, node *corev1.Node, value string) *corev1.Node {
	node = node.DeepCopy()
	node.Labels[fmt.Sprint("set", i)] = value
	if value == "broken" {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "broken", Effect: corev1.TaintEffectNoSchedule})
		SetCondition(node, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "Broken"})
	}
	return node
}

// round runs a round. For each setter there is its value, "failed", "late", or
// "later:VALUE" if it returns late, but before the round ends; for each check "ok",
// "failed" or "late".
func (w *script) round(results []string) string {
	w.Helper()
	spec := ""
	if strings.Contains(w.apply(RoundBegan{Slept: w.slept}), "+spec") {
		spec = " +spec"
	}
	w.slept = false
	end := RoundEnded{Name: node1, Node: template()}
	var later []Returned
	for i, result := range results {
		setter, before := i < w.rules.Setters, end.Node
		failure := Failure{Field: fmt.Sprint("function ", i), Check: !setter, Message: result}
		if value, ok := strings.CutPrefix(result, "later:"); ok {
			result = "late"
			later = append(later, Returned{Index: i, Before: before, After: w.set(i, before, value)})
		}
		plan, err := w.state.plan(i)
		w.apply(Reached{Index: i})
		switch {
		case plan == Skip && errors.Is(err, ErrPending):
			result, failure.Late = "late", true
		case plan == Skip && setter:
			result, failure.Late = "taken", true
		case plan == Skip && err != nil:
			result = "failed"
		case plan == Skip:
		case result == "late":
			w.apply(GaveUp{Index: i})
			failure.Late = true
		case result == "failed":
			w.apply(Returned{Index: i, Err: errors.New(result)})
		case setter:
			end.Node = w.set(i, before, result)
			w.apply(Returned{Index: i, Before: before, After: end.Node})
		default:
			w.apply(Returned{Index: i})
		}
		if result == "late" || result == "failed" || result == "taken" {
			end.Failures = append(end.Failures, failure)
			if setter {
				end.Node = w.state.LastValues(i, before)
			}
		}
	}
	for _, ev := range later {
		w.apply(ev)
	}
	return w.apply(end) + spec
}
