// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// callsOfTheProvider returns the Ops that types.go names under that comment.
func callsOfTheProvider(t *testing.T) (ops []Op) {
	source, err := os.ReadFile("types.go")
	if err != nil {
		t.Fatal(err)
	}
	_, group, _ := strings.Cut(string(source), "// The calls of the provider.\nconst (")
	group, _, _ = strings.Cut(group, "\n)")
	for _, name := range regexp.MustCompile(`Op = "(\w+)"`).FindAllStringSubmatch(group, -1) {
		ops = append(ops, Op(name[1]))
	}
	return ops
}

// A call that hangs must not keep the end of its pod from being called: it is canceled, and Stop
// follows. A call of an instance that has stopped is in nobody's way.
func TestNoCallKeepsThePodFromEnding(t *testing.T) {
	running := []string{"seen", "list first", "call", "returned runs", "send", "answer ok"}
	ended := []string{"report exit=0 stopped", "send", "answer ok"}
	begun := map[Op][]string{ // the events before the call
		Admit:    {"rules admits", "seen", "list first"},
		Annotate: {"rules annotates", "seen", "list first"},
		Start:    {"seen", "list first"},
		Update:   slices.Concat(running, []string{"edit generation=2", "seen"}),
		Inspect:  slices.Concat([]string{"rules inspects"}, running, []string{"list"}),
		Save:     slices.Concat([]string{"rules checkpoints"}, running),
		Stop:     slices.Concat(running, []string{"edit deleted=30", "seen"}),
	}
	harmless := map[Op][]string{ // of an instance that has stopped
		Release: slices.Concat([]string{"edit restart=Never"}, running, ended, []string{"edit deleted=30", "seen", "send", "answer ok"}),
		Remove:  slices.Concat([]string{"rules checkpoints", "edit restart=Never"}, running, []string{"call", "returned ok"}, ended),
	}
	ops := callsOfTheProvider(t)
	if len(ops) < 9 {
		t.Fatalf("the calls of the provider are %q", ops)
	}
	for _, op := range ops {
		t.Run(string(op), func(t *testing.T) {
			w := newScript(t)
			do := func(events ...string) {
				for _, event := range events {
					w.run(strings.Fields(event))
				}
			}
			before, ends := begun[op]
			if !ends {
				before = harmless[op]
			}
			do(before...)
			if do("call"); w.state.InFlight(Calls).Op != op {
				t.Fatalf("%s is under way", w.state.InFlight(Calls).Op)
			}
			if !ends {
				if !w.state.stopped() {
					t.Error("the instance has not stopped")
				}
				return
			}
			if do("edit deleted=5", "seen"); !w.state.Next(w.now, Calls, true).Cancel {
				t.Fatal("the call is not in the way")
			}
			do("canceled", "returned error")
			if next := w.state.Next(w.now, Calls, true).Op; next != Stop && !w.state.stopped() {
				t.Errorf("then %q is due", next)
			}
		})
	}
}

// The gate of an orphan is that of the node that it was started for, also when it opens again.
func TestAClosedGateKeepsTheNodeOfAnOrphan(t *testing.T) {
	s := NewOrphan(testRules(), tick, 1, Saved{}, "n")
	if _, err := s.Apply(moment(tick), GateClosed{}); err != nil {
		t.Fatal(err)
	}
	if _, started := s.NodeName(); started != "n" {
		t.Errorf("it was started for node %q", started)
	}
}
