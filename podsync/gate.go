// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// A GateFunc reports whether this process may act for a node: nil if it may, or
// an error that says why not, for example because another process renews the
// node's lease.
//
// It is called before each provider call, each List and each request of a pod, and each
// second while it returns an error. It is called for several pods at the same time, so
// it must answer from memory. It must return when ctx is done.
type GateFunc func(ctx context.Context, nodeName string) error

// gateRetry is the time between two calls of a gate that said no.
const gateRetry = time.Second

// A gateState is the last answer of Config.Gate for a node.
type gateState uint8

const (
	gateUnasked gateState = iota
	gateClosed
	gateOpen
)

// nodeOf returns the node that the pod is bound to, or that its instance was
// started for, or else Config.NodeName.
func (c *Controller) nodeOf(t *podState) string {
	switch {
	case t.api.node != "":
		return t.api.node
	case t.provider.nodeName != "":
		return t.provider.nodeName
	}
	return c.cfg.NodeName
}

// mayAct reports whether the gate of the pod's node was open when last asked.
// c.mu must be held.
func (c *Controller) mayAct(t *podState) bool {
	if c.cfg.Gate == nil {
		return true
	}
	node := c.nodeOf(t)
	state, ok := c.gates[node]
	if !ok {
		c.gates[node] = gateUnasked
		wake(c.askGates)
	}
	return state == gateOpen
}

// askGate calls Config.Gate.
func (c *Controller) askGate(ctx context.Context, node string) error {
	if c.cfg.Gate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return contain("Gate", func() error { return c.cfg.Gate(ctx, node) })
}

// runGates asks the gates that are not open until ctx is done: at once if a
// node is new, and each gateRetry if the gate said no.
func (c *Controller) runGates(ctx context.Context) {
	timer := time.NewTimer(gateRetry)
	defer timer.Stop()
	for {
		if closed := c.askAll(ctx, false); closed {
			timer.Reset(gateRetry)
		}
		select {
		case <-c.askGates:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// pruneGates forgets the nodes, other than Config.NodeName, of which no pod is known. c.mu must be held.
func (c *Controller) pruneGates() {
	if len(c.gates) == 0 {
		return
	}
	used := make(map[string]bool, len(c.gates))
	for _, t := range c.tracks {
		used[c.nodeOf(t)] = true
	}
	for node, state := range c.gates {
		if used[node] || node == c.cfg.NodeName {
			continue
		}
		if state == gateClosed {
			c.closedGates--
		}
		delete(c.gates, node)
	}
}

// askAll asks the gates that are not open, or all of them. It reports whether
// one is closed.
func (c *Controller) askAll(ctx context.Context, openToo bool) (closed bool) {
	c.mu.Lock()
	var nodes []string
	for node, state := range c.gates {
		if state != gateOpen || openToo {
			nodes = append(nodes, node)
		}
	}
	c.mu.Unlock()
	for _, node := range nodes {
		err := c.askGate(ctx, node)
		if ctx.Err() != nil {
			return false
		}
		c.mu.Lock()
		if err != nil {
			closed = true
			c.closeGate(ctx, node, err)
		} else {
			c.openGate(ctx, node)
		}
		c.mu.Unlock()
	}
	if len(nodes) > 0 {
		wake(c.kick)
	}
	return closed
}

// closeGate makes every pod of the node wait for a List that begins after the
// gate has opened again: another process may act for the node from now on, and
// nothing that this one knows of the provider is certain then. c.mu must be held.
func (c *Controller) closeGate(ctx context.Context, node string, err error) {
	if c.gates[node] == gateClosed {
		return
	}
	c.gates[node] = gateClosed
	c.closedGates++
	wake(c.askGates)
	level := klog.Level(0)
	if c.closedGates > 1 {
		level = 2 // one line is enough for a thousand nodes
	}
	logger := klog.FromContext(ctx).V(int(level))
	c.later(func() { logger.Info("Not acting for the node: the gate is closed", "node", node, "reason", err) })
	for _, t := range c.tracks {
		if c.nodeOf(t) == node {
			t.reset(&c.rules, c.now())
			c.markDirty(t)
		}
	}
}

// openGate lets the pods of the node go on. c.mu must be held.
func (c *Controller) openGate(ctx context.Context, node string) {
	before := c.gates[node]
	if before == gateOpen {
		return
	}
	c.gates[node] = gateOpen
	if before == gateClosed {
		c.closedGates--
		level := klog.Level(2)
		if c.closedGates == 0 {
			level = 0
		}
		logger := klog.FromContext(ctx).V(int(level))
		c.later(func() { logger.Info("Acting for the node: the gate is open", "node", node) })
	}
	for _, t := range c.tracks {
		if c.nodeOf(t) != node {
			continue
		}
		c.markDirty(t)
		switch {
		case t.provider.listed || t.api.pod == nil:
		case before == gateClosed:
			c.seq++
			t.sched.born = c.seq
		default:
			c.classifyFresh(t)
		}
	}
	wake(c.relist)
}
