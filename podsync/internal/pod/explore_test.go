// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestRandomEvents applies events in random orders, those too that a well-behaved server or
// provider never causes. The invariants must hold after each, and no order may panic.
func TestRandomEvents(t *testing.T) {
	seeds := 3000
	if testing.Short() {
		seeds = 400
	}
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newScript(t)
		var log []string
		do := func(event string) {
			log = append(log, event)
			w.run(strings.Fields(event))
			if t.Failed() {
				t.Fatalf("seed %d:\n%s", seed, strings.Join(log, "\n"))
			}
		}
		rules := "rules"
		for _, rule := range []string{"simple", "admits", "inspects", "annotates", "checkpoints", "gated", "complete", "lost=fail", "lost=restart"} {
			if r.IntN(3) == 0 {
				rules += " " + rule
			}
		}
		do(rules)
		do(pickOf(r, "edit restart=Always", "edit restart=Never", "edit ran restart=Always", "edit ran", "edit exited=0", "edit controller", "edit deadline=50"))
		switch r.IntN(4) {
		case 0:
			do(pickOf(r, "instance", "instance saved"))
		case 1:
			do(pickOf(r, "saved", "saved lost", "saved Evicted", "saved Completed"))
			do(pickOf(r, "seen", "recorded"))
		default:
			do("seen")
		}
		for range 80 {
			do(w.random(r))
		}
	}
}

func pickOf(r *rand.Rand, choices ...string) string { return choices[r.IntN(len(choices))] }

// random returns an event that is possible now.
func (w *script) random(r *rand.Rand) string {
	t := &w.state
	report := pickOf(r, "runs", "runs", "unready", "details", "exit=0", "exit=1", "exit=0 stopped", "exit=1 stopped delete", "stopped", "runs key="+fmt.Sprint(r.IntN(3)), "runs generation=1")
	if c := t.call.inflight; c != nil && r.IntN(3) == 0 {
		return "returned " + pickOf(r, report, report, "ok", "error", "error=other", "reject=R", "unknown", "later=1m", "ok saved", "error saved")
	}
	if c := t.write.inflight; c != nil && r.IntN(3) == 0 {
		switch c.Op {
		case Get:
			return "answer " + pickOf(r, "ok", "gone", "unanswered", "forbidden")
		case Delete:
			return "answer " + pickOf(r, "ok", "unanswered", "after=20s")
		}
		return "answer " + pickOf(r, "ok", "ok", "ok", "changed", "equal", "lost", "unanswered", "forbidden", "gone", "conflict", "invalid", "invalidAnnotations")
	}
	if action := t.Next(w.now, Calls, true); r.IntN(2) == 0 {
		switch {
		case action.Op != "":
			return "call"
		case action.Cancel:
			return "canceled"
		}
	}
	if t.Next(w.now, Writes, true).Op != "" && r.IntN(2) == 0 {
		return "send"
	}
	switch _, suspect := t.Suspect(); r.IntN(16) {
	case 0:
		return "edit " + pickOf(r, "deleted=30", "deleted=0", "deleted=5 finalizer", "phase=Failed", "phase=Running", "other=1", fmt.Sprint("generation=", w.server.Generation+1))
	case 1, 2:
		if !t.Seen() && t.Known() {
			return "seen joined" // orphans are known by a List
		}
		return "seen"
	case 3:
		if t.Seen() {
			return "vanished " + pickOf(r, "", "doubtful", "restored")
		}
	case 4, 5:
		return "report " + report
	case 6:
		return "report " + report + " list"
	case 7, 8:
		return "list " + pickOf(r, "", "shown", "first")
	case 9:
		if t.Seen() && !t.Known() {
			return "joined"
		}
	case 10:
		if t.mayBeLost() || suspect {
			return "believe"
		}
	case 11:
		if suspect {
			return "asked " + pickOf(r, "none", "forbidden", "gone", "there")
		}
		return "inspect"
	case 12:
		return "gate " + pickOf(r, "closed", "open")
	case 13:
		if t.Seen() && !t.stopped() && !t.gone() {
			return "evict"
		}
	}
	return "wait " + time.Duration(r.Int64N(int64(pick(r, time.Second, 20*time.Second, 20*time.Minute)))).String()
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }
