// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// A gate that opens or closes concerns the pods of its node only, and only once.
func TestAGateConcernsThePodsOfItsNode(t *testing.T) {
	c := atRest(t, gated)
	other := podOf("b", "v")
	other.Spec.NodeName = "m"
	pods := []*entry{c.runs(podOf("a", "u")), c.runs(other)}
	c.clean()
	type outcome struct {
		closed         int
		dirty, known   string
		wanted, relist bool
	}
	open := func(node string) func() { return func() { c.gates.open(c.run.callCtx, node) } }
	shut := func(node string) func() { return func() { c.gates.close(c.run.callCtx, node, errFailed) } }
	list := func() {
		for _, pod := range pods {
			c.apply(pod, core.ListEnded{Seq: c.pods.tick(), Open: c.gates.mayAct(pod)})
		}
	}
	for i, tc := range []struct {
		do   func()
		want outcome
	}{
		{open("n"), outcome{0, "a", "ab", false, true}},
		{open("n"), outcome{0, "", "ab", false, false}},
		{shut("n"), outcome{1, "a", "b", true, false}},
		{shut("n"), outcome{1, "", "b", false, false}},
		{shut("m"), outcome{2, "b", "", true, false}},
		{list, outcome{2, "", "", false, false}},
		{open("m"), outcome{1, "b", "", false, true}},
		{list, outcome{1, "", "b", false, false}},
		{open("n"), outcome{0, "a", "b", false, true}},
		{shut("m"), outcome{1, "b", "", true, false}},
	} {
		tc.do()
		got := outcome{closed: c.gates.closed, wanted: woken(c.gates.wanted), relist: woken(c.pods.relist)}
		for _, pod := range pods {
			if pod.dirty {
				got.dirty += pod.ref.Name
			}
			if pod.Known() {
				got.known += pod.ref.Name
			}
		}
		c.clean()
		if got != tc.want {
			t.Errorf("step %d: got %+v, want %+v", i, got, tc.want)
		}
	}
	// A node that is new: a pod that no earlier process started needs no List of its own.
	next := podOf("c", "w")
	next.Spec.NodeName = "new"
	c.pods.synced = true
	pod := c.seen(next, core.Saved{})
	if c.gates.joined(pod) || !woken(c.gates.wanted) {
		t.Error("the gate counts as open before it was asked, or it is not asked")
	}
	if c.gates.open(c.run.callCtx, "new"); !pod.Known() {
		t.Error("it waits for a List")
	}
}

// The gate of a node without pods is no longer asked, and its failures no longer count.
func TestWhichGatesAreForgotten(t *testing.T) {
	for own, want := range map[string][]string{"n": {"asked", "n", "used"}, "": {"asked", "used"}} {
		c := atRest(t, gated)
		c.gates.nodeName = own
		used := podOf("a", "u")
		used.Spec.NodeName = "used"
		c.runs(used)
		for _, node := range []string{"", "n", "used", "unused", "asked"} {
			c.gates.get(node).state = gateClosed
			c.gates.closed++
		}
		c.gates.get("asked").asked.Store(true)
		fails := func(node string) {
			c.gates.errors.Fail(c.run.callCtx, c.pods.handler, &c.gates.get(node).errs, errFailed, "m")
		}
		fails("unused")
		c.gates.prune()
		if got := slices.Sorted(maps.Keys(c.gates.nodes)); !slices.Equal(got, want) || c.gates.closed != len(want) {
			t.Errorf("own node %q: %q are left, and %d are closed", own, got, c.gates.closed)
		}
		if fails("used"); len(c.told) != 2 {
			t.Errorf("own node %q: of two outages %d are reported", own, len(c.told))
		}
	}
}

// A gate that panics is reported once, until it answers: yes or no. After Run it is not.
func TestAGateThatPanicsIsReportedOnce(t *testing.T) {
	var does func() error
	c := atRest(t, func(cfg *Config) { cfg.Gate = func(context.Context, string) error { return does() } })
	stopped, cancel := context.WithCancel(c.run.callCtx)
	cancel()
	panics, yes, no := func() error { panic("p") }, func() error { return nil }, func() error { return errFailed }
	for i, step := range []struct {
		ctx  context.Context
		does func() error
		told int
	}{
		{c.run.callCtx, no, 0}, {c.run.callCtx, panics, 1}, {c.run.callCtx, panics, 1}, {c.run.callCtx, yes, 1},
		{c.run.callCtx, panics, 2}, {c.run.callCtx, no, 2}, {stopped, panics, 2}, {c.run.callCtx, panics, 3},
	} {
		does = step.does
		if err := c.gates.ask(step.ctx, "n"); (err == nil) != (i == 3) || len(c.told) != step.told {
			t.Errorf("call %d: %v, and reported %q", i, err, c.told)
		}
		c.gates.room.Wait()
	}
	for _, told := range c.told {
		if !strings.Contains(told, `gate of node "n": panic in Gate: p`) {
			t.Errorf("reported %s", told)
		}
	}
}

// Gates that are open are asked before a List only, and all of them then.
func TestWhichGatesAreAsked(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	var answer error
	c := atRest(t, func(cfg *Config) {
		cfg.Gate = func(_ context.Context, node string) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, node)
			return answer
		}
	})
	c.gates.get("open").state = gateOpen
	c.gates.get("closed").state = gateClosed
	c.gates.closed = 1
	c.gates.get("new")
	for i, step := range []struct {
		openToo bool
		answer  error
		want    string
		closed  int
	}{
		{false, nil, "closed new", 0}, {false, errFailed, "", 0}, {true, nil, "closed new open", 0}, {true, errFailed, "closed new open", 3}, {false, errFailed, "closed new open", 3}, {false, nil, "closed new open", 0},
	} {
		asked, answer = nil, step.answer
		closed := c.gates.askAll(c.run.callCtx, step.openToo)
		slices.Sort(asked)
		if got := strings.Join(asked, " "); got != step.want || closed != (step.closed > 0) || c.gates.closed != step.closed {
			t.Errorf("step %d: asked %q, one is closed: %v, and %d are", i, got, closed, c.gates.closed)
		}
	}
}

// A gate that said no is asked again each second, until Run is to return.
func TestAGateThatSaidNoIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		c := atRest(t, func(cfg *Config) {
			cfg.Gate = func(context.Context, string) error {
				asked++
				return errFailed
			}
		})
		c.gates.get("n")
		ctx, cancel := context.WithTimeout(c.run.callCtx, 10*gateRetry-1)
		defer cancel()
		c.gates.run(ctx)
		if asked != 11 { // twice at once: its first answer is news
			t.Errorf("it was asked %d times in ten seconds", asked)
		}
	})
}
