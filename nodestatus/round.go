// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/slots"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// roundPatience is the time that a round holds a worker. After that it goes on without
// one, so that slow functions of some nodes hold up no other node's.
const roundPatience = 100 * time.Millisecond

// round computes the status of a node and asks for the request that follows from it.
// The scheduler runs it for one node at a time.
func (c *Controller) round(ctx context.Context, name string, n *node) slots.Next {
	c.progress.Beat()
	defer c.progress.Beat()
	if c.nodes.Leaving(name) {
		c.queue.Add(name)
		return slots.Next{}
	}
	sleeps := c.sleeps.tick(time.Now())
	var idle bool
	n.read(func(s *status.State) { idle = s.Resting() })
	if idle {
		return slots.Next{Idle: true}
	}
	if done, slept := n.beginRound(sleeps); done != nil {
		life := n.life(c.life)
		c.rounds.Go(func() { c.finishRound(withNode(life, name), n, slept) })
		timer := time.NewTimer(roundPatience)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	c.sleeps.tick(time.Now())
	var wait time.Duration
	n.read(func(s *status.State) { idle, wait = s.Resting(), s.Wait(n.clock.now()) })
	return slots.Next{Idle: idle, Wait: wait, NoLaterThanSlot: true, Deadline: time.Now().Add(c.patience())}
}

// trigger asks for a round that begins after now.
func (c *Controller) trigger(name string) {
	if n, ok := c.nodes.Get(name); ok && !n.wantRound() {
		c.nodes.Trigger(name)
	}
}

// withNode adds the node to the context's logger.
func withNode(ctx context.Context, name string) context.Context {
	return klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", klog.KRef("", name)))
}

// finishRound runs the setters and health checks, and asks for the request that follows.
func (c *Controller) finishRound(ctx context.Context, n *node, slept bool) {
	defer func() {
		removed := ctx.Err() != nil
		if n.endRound() && !removed {
			c.trigger(n.name)
		}
	}()
	c.report.news(ctx, n, n.apply(status.RoundBegan{Slept: slept}))
	made, failures := c.functions.collect(ctx, n)
	if ctx.Err() != nil {
		return
	}
	ended := status.RoundEnded{Name: n.name, Node: made}
	for _, f := range failures {
		ended.Failures = append(ended.Failures, f.Failure)
	}
	var starting bool
	n.read(func(s *status.State) { starting = s.Starting(n.clock.now()) })
	c.report.functions(ctx, n, failures, starting)
	if _, late := c.gates.ask(ctx, n); late || ctx.Err() != nil {
		return // a node that can't report its status must not look alive: see Live
	}
	news := n.apply(ended)
	c.report.leftOut(ctx, n, news.LeftOut)
	c.report.news(ctx, n, news)
	var next status.Do
	var cause status.Cause
	n.read(func(s *status.State) { next, cause = s.Next(n.clock.now()) })
	klog.FromContext(ctx).V(5).Info("Decided", "next", next, "cause", cause)
	if next != status.Nothing {
		c.queue.Add(n.name)
	}
}

// overloaded reports that the workers can't do all rounds in time, or can again.
func (c *Controller) overloaded(ctx context.Context, load slots.Load, now bool) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "nodes", load.Names, "syncInterval", load.Interval, "workers", load.Workers, "round", load.Run,
		"needed", fmt.Sprintf("%.1f/s", load.Needed()), "possible", fmt.Sprintf("%.1f/s", load.Possible()))
	if now {
		logger.Info("Rounds of setters and health checks begin late, so nodes may become Unknown: raise Config.Workers or SyncInterval, or make the functions faster", "late", load.Late)
	} else {
		logger.Info("Rounds of setters and health checks begin in time again")
	}
	if hook := c.cfg.Hooks.Overloaded; hook != nil {
		hook(Overloaded{Nodes: load.Names, SyncInterval: load.Interval, Workers: load.Workers, Round: load.Run, Late: load.Late, Ended: !now})
	}
}
