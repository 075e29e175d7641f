// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/slots"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// roundHold is the time for which a round holds a worker. After that it goes on without
// one, so that slow functions of some nodes hold up no other node's.
const roundHold = 100 * time.Millisecond

// round computes the status of a node and asks for the request that follows from it.
// The scheduler runs it for one node at a time.
func (c *Controller) round(_ context.Context, name string, n *node) slots.Next {
	c.progress.Beat()
	defer c.progress.Beat()
	if c.nodes.Leaving(name) {
		c.queue.Add(name)
		return slots.Next{}
	}
	ctx, began := n.beginRound(c.life, c.sleeps.tick(time.Now()))
	if ctx == nil {
		return slots.Next{Idle: true}
	}
	ctx = withNode(ctx, name)
	c.report.news(ctx, n, began)
	computed := c.compute(ctx, n, began.Starting)
	c.sleeps.tick(time.Now())
	next := n.endRound()
	if computed {
		klog.FromContext(ctx).V(5).Info("Decided", "next", next.Do, "cause", next.Cause)
		if next.Do != status.Nothing {
			c.queue.Add(name)
		}
	}
	return slots.Next{Idle: next.Resting, Wait: next.Wait, NoLaterThanSlot: true, Deadline: time.Now().Add(c.patience())}
}

// compute runs the setters and health checks, and computes the status of the node. It
// reports false if the node was removed, or if its gate does not answer: a node that can't
// report its status must not look alive. See Live.
func (c *Controller) compute(ctx context.Context, n *node, starting bool) bool {
	made, failures := c.functions.collect(ctx, n)
	if ctx.Err() != nil {
		return false
	}
	ended := status.RoundEnded{Name: n.name, Node: made}
	for _, f := range failures {
		ended.Failures = append(ended.Failures, f.Failure)
	}
	c.report.functions(ctx, n, failures, starting)
	if _, late := c.gates.ask(ctx, n); late || ctx.Err() != nil {
		return false
	}
	news := n.apply(ended)
	c.report.leftOut(ctx, n, news.LeftOut)
	c.report.news(ctx, n, news)
	return true
}

// patience is the time after its last round at which a node counts as neglected: for
// Live, and for the scheduler if it has more to run than it can.
func (c *Controller) patience() time.Duration {
	return 3*c.cfg.SyncInterval + 2*functionTimeout + 3*callTimeout
}

// withNode adds the node to the context's logger.
func withNode(ctx context.Context, name string) context.Context {
	return klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", klog.KRef("", name)))
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

// A sleepWatch notices that the whole process did not run for a while.
type sleepWatch struct {
	limit time.Duration

	mu     sync.Mutex
	last   time.Time
	sleeps uint32
}

// tick returns the number of times that the process slept up to now. The clock is the
// wall's, because the monotonic one stands still while a machine is suspended;
// a step of the wall clock counts as a sleep, which costs one read per node.
func (w *sleepWatch) tick(now time.Time) uint32 {
	now = now.Round(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last.IsZero() && now.Sub(w.last) > w.limit {
		w.sleeps++
	}
	w.last = now
	return w.sleeps
}
