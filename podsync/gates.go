// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
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

// A gatedNode is a node as its gate has it.
type gatedNode struct {
	state gateState // guarded by the lock of the table
	line  callback.Line[struct{}]
	asked atomic.Bool // a call of the gate is under way
	errs  apierr.Member
}

// gates ask Config.Gate. The lock of the table guards nodes, closed, since and told.
type gates struct {
	pods     *table
	gate     GateFunc // nil: always open
	nodeName string   // Config.NodeName
	room     callback.Room[struct{}]
	errors   apierr.Group

	wanted chan struct{} // a gate must be asked
	nodes  map[string]*gatedNode
	closed int // the number of nodes that are gateClosed
	// since is when the first of them closed, and told that a line at V0 says so.
	since instant
	told  bool
}

// nodeOf returns the node that the pod is bound to, or that its instance was
// started for, or else Config.NodeName.
func (g *gates) nodeOf(t *entry) string {
	bound, started := t.NodeName()
	return cmp.Or(bound, started, g.nodeName)
}

// mayAct reports whether the gate of the pod's node was open when last asked.
// The lock of the table must be held.
func (g *gates) mayAct(t *entry) bool {
	if g.gate == nil {
		return true
	}
	n := g.get(g.nodeOf(t))
	if n.state == gateUnasked {
		wake(g.wanted)
	}
	return n.state == gateOpen
}

// joined reports whether a List was applied and the gate of the pod's node is open, so that the pod
// may be decided about. If the List has an instance that may be that of an earlier pod of the name, the
// next one decides, and is called at once. The lock of the table must be held.
func (g *gates) joined(t *entry) bool {
	if !g.pods.synced || !g.mayAct(t) {
		return false
	}
	if len(g.pods.nameless) == 0 || t.Known() || !g.pods.nameless[nameOf(t.ref)] {
		return true
	}
	wake(g.pods.relist)
	return false
}

// get returns a node. The lock of the table must be held.
func (g *gates) get(node string) *gatedNode {
	n := g.nodes[node]
	if n == nil {
		n = &gatedNode{}
		g.nodes[node] = n
	}
	return n
}

// ask calls Config.Gate, and waits for the answer for as long as callback.GateLimit. ctx must be one of
// runState, because a call that hangs outlives the one that asks.
func (g *gates) ask(ctx context.Context, node string) error {
	if g.gate == nil {
		return nil
	}
	g.pods.mu.Lock()
	n := g.get(node)
	g.pods.mu.Unlock()
	_, err := g.room.Ask(ctx, node, &n.line, func(ctx context.Context) (struct{}, error) {
		n.asked.Store(true)
		defer n.asked.Store(false)
		return struct{}{}, contain("Gate", func() error { return g.gate(ctx, node) })
	})
	_, panicked := errors.AsType[*PanicError](err)
	switch {
	case ctx.Err() != nil:
	case panicked || callback.Failed(err):
		g.errors.Fail(ctx, g.pods.handler, &n.errs, fmt.Errorf("podsync: gate of node %q: %w", node, err), "Failed to ask the gate of a node", panicValues(err, "node", node)...)
	default:
		g.errors.OK(ctx, &n.errs, "The gates of all nodes answer again")
	}
	return err
}

// run asks the gates that are not open until ctx is done: at once if a
// node is new, and each gateRetry if the gate said no.
func (g *gates) run(ctx context.Context) {
	for {
		var again <-chan time.Time
		if closed := g.askAll(ctx, false); closed {
			again = time.After(gateRetry)
		}
		select {
		case <-g.wanted:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// prune forgets the nodes, other than Config.NodeName, of which no pod is known. The lock of
// the table must be held.
func (g *gates) prune() {
	if len(g.nodes) == 0 {
		return
	}
	used := make(map[string]bool, len(g.nodes))
	for _, t := range g.pods.pods {
		used[g.nodeOf(t)] = true
	}
	for node, n := range g.nodes {
		if used[node] || node != "" && node == g.nodeName || n.asked.Load() {
			continue
		}
		if n.state == gateClosed {
			g.closed--
		}
		g.errors.Retire(&n.errs)
		delete(g.nodes, node)
	}
}

// askAll asks the gates that are not open, or all of them, side by side: one that hangs delays
// the others by callback.GateLimit at most. It reports whether one is closed.
func (g *gates) askAll(ctx context.Context, openToo bool) bool {
	g.pods.mu.Lock()
	var nodes []string
	for node, n := range g.nodes {
		if n.state != gateOpen || openToo {
			nodes = append(nodes, node)
		}
	}
	g.pods.mu.Unlock()
	var (
		asking sync.WaitGroup
		closed atomic.Bool
	)
	for _, node := range nodes {
		asking.Go(func() {
			err := g.ask(ctx, node)
			if ctx.Err() != nil {
				return
			}
			g.pods.mu.Lock()
			defer g.pods.mu.Unlock()
			if err != nil {
				closed.Store(true)
				g.close(ctx, node, err)
			} else {
				g.open(ctx, node)
			}
		})
	}
	asking.Wait()
	return closed.Load()
}

// close makes every pod of the node wait for a List that begins after the
// gate has opened again: another process may act for the node from now on, and
// nothing that this one knows of the provider is certain then. The lock of the table must be
// held.
func (g *gates) close(ctx context.Context, node string, err error) {
	n := g.get(node)
	before := n.state
	if g.closed == 0 {
		g.since, g.told = g.pods.now(), false
	}
	g.tell(ctx, node, err, before)
	if before == gateClosed {
		return
	}
	n.state = gateClosed
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
	n := g.get(node)
	before := n.state
	if before == gateOpen {
		return
	}
	n.state = gateOpen
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
		case g.joined(t) && t.Seen() && !t.Known():
			g.pods.apply(t, at, core.Joined{})
		}
	}
	wake(g.pods.relist)
}
