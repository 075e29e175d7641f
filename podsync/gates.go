// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// gateRetry is the time between two calls of a gate that said no.
const gateRetry = time.Second

// A gateState is the last answer of Config.Gate for a node.
type gateState uint8

const (
	gateUnasked gateState = iota
	gateClosed
	gateOpen
)

// gates ask Config.Gate. The lock of the table guards states and closed.
type gates struct {
	pods     *table
	gate     GateFunc // nil: always open
	nodeName string   // Config.NodeName

	wanted chan struct{} // a gate must be asked
	states map[string]gateState
	closed int // the number of states that are gateClosed
	// since is when the first of them closed, and told that a line at V0 says so.
	since instant
	told  bool
}

// nodeOf returns the node that the pod is bound to, or that its instance was
// started for, or else Config.NodeName.
func (g *gates) nodeOf(t *entry) string {
	bound, started := t.NodeName()
	switch {
	case bound != "":
		return bound
	case started != "":
		return started
	}
	return g.nodeName
}

// mayAct reports whether the gate of the pod's node was open when last asked.
// The lock of the table must be held.
func (g *gates) mayAct(t *entry) bool {
	if g.gate == nil {
		return true
	}
	node := g.nodeOf(t)
	state, ok := g.states[node]
	if !ok {
		g.states[node] = gateUnasked
		wake(g.wanted)
	}
	return state == gateOpen
}

// ask calls Config.Gate.
func (g *gates) ask(ctx context.Context, node string) error {
	if g.gate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return contain("Gate", func() error { return g.gate(ctx, node) })
}

// run asks the gates that are not open until ctx is done: at once if a
// node is new, and each gateRetry if the gate said no.
func (g *gates) run(ctx context.Context) {
	timer := time.NewTimer(gateRetry)
	defer timer.Stop()
	for {
		if closed := g.askAll(ctx, false); closed {
			timer.Reset(gateRetry)
		}
		select {
		case <-g.wanted:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// prune forgets the nodes, other than Config.NodeName, of which no pod is known. The lock of
// the table must be held.
func (g *gates) prune() {
	if len(g.states) == 0 {
		return
	}
	used := make(map[string]bool, len(g.states))
	for _, t := range g.pods.pods {
		used[g.nodeOf(t)] = true
	}
	for node, state := range g.states {
		if used[node] || node != "" && node == g.nodeName {
			continue
		}
		if state == gateClosed {
			g.closed--
		}
		delete(g.states, node)
	}
}

// askAll asks the gates that are not open, or all of them. It reports whether
// one is closed.
func (g *gates) askAll(ctx context.Context, openToo bool) (closed bool) {
	g.pods.mu.Lock()
	var nodes []string
	for node, state := range g.states {
		if state != gateOpen || openToo {
			nodes = append(nodes, node)
		}
	}
	g.pods.mu.Unlock()
	for _, node := range nodes {
		err := g.ask(ctx, node)
		if ctx.Err() != nil {
			return false
		}
		g.pods.mu.Lock()
		if err != nil {
			closed = true
			g.close(ctx, node, err)
		} else {
			g.open(ctx, node)
		}
		g.pods.mu.Unlock()
	}
	if len(nodes) > 0 {
		wake(g.pods.kick)
	}
	return closed
}

// close makes every pod of the node wait for a List that begins after the
// gate has opened again: another process may act for the node from now on, and
// nothing that this one knows of the provider is certain then. The lock of the table must be
// held.
func (g *gates) close(ctx context.Context, node string, err error) {
	before := g.states[node]
	if g.closed == 0 {
		g.since, g.told = g.pods.now(), false
	}
	g.tell(ctx, node, err, before)
	if before == gateClosed {
		return
	}
	g.states[node] = gateClosed
	g.closed++
	wake(g.wanted)
	at := g.pods.moment()
	for _, t := range g.pods.pods {
		if g.nodeOf(t) == node {
			g.pods.apply(t, at, core.GateClosed{})
			g.pods.markDirty(t)
		}
	}
}

// startPatience is how long a gate may be closed at the start before an operator must see
// it. The lease of a new node takes a second or two.
const startPatience = 15 * time.Second

// tell logs that the gate of a node is closed, at V0 once: one line is enough for a thousand
// nodes. before is its state before the answer. The lock of the table must be held.
func (g *gates) tell(ctx context.Context, node string, err error, before gateState) {
	level := klog.Level(2)
	switch due := before == gateOpen || g.pods.now()-g.since >= startPatience; {
	case due && !g.told:
		level, g.told = 0, true
	case before == gateClosed:
		return
	}
	logger := klog.FromContext(ctx).V(int(level))
	g.pods.later(func() { logger.Info("Not acting for the node: the gate is closed", "node", node, "reason", err) })
}

// open lets the pods of the node go on. The lock of the table must be held.
func (g *gates) open(ctx context.Context, node string) {
	before := g.states[node]
	if before == gateOpen {
		return
	}
	g.states[node] = gateOpen
	if before == gateClosed {
		g.closed--
		level := klog.Level(2)
		if g.closed == 0 && g.told {
			level = 0
		}
		logger := klog.FromContext(ctx).V(int(level))
		g.pods.later(func() { logger.Info("Acting for the node: the gate is open", "node", node) })
	}
	at := g.pods.moment()
	for _, t := range g.pods.pods {
		if g.nodeOf(t) != node {
			continue
		}
		g.pods.markDirty(t)
		switch {
		case before == gateClosed:
			g.pods.apply(t, at, core.GateOpened{Seq: g.pods.tick()})
		case g.pods.synced && t.Seen() && !t.Known():
			g.pods.apply(t, at, core.Joined{})
		}
	}
	wake(g.pods.relist)
}
