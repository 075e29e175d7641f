// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// maxRequests is the number of requests about a node in a row: taints, and a status
// with its conflicts. Others follow after the next round.
const maxRequests = 8

// act sends the requests that a round asks for, if they are still to be sent. The queue
// acts for one node at a time.
func (c *Controller) act(ctx context.Context, name string) {
	ctx = withNode(ctx, name)
	if c.nodes.Part(ctx, name) {
		return
	}
	n, ok := c.nodes.Get(name)
	if !ok {
		return
	}
	for range maxRequests {
		if !c.gates.visit(withNode(c.life, name), n) {
			return // the answer queues the node again
		}
		r := n.next()
		if r.do == status.Nothing {
			break
		}
		if c.request(ctx, n, r); ctx.Err() != nil {
			return
		}
	}
	var wait time.Duration
	var wants bool
	n.read(func(s *status.State) { wait, wants = s.Wait(n.clock.now()), s.Wants() })
	switch {
	case wait > 0:
		c.nodes.TriggerAfter(name, wait)
	case wants:
		c.trigger(name)
	}
}

// request sends a request and takes in its answer.
func (c *Controller) request(ctx context.Context, n *node, r request) {
	logger := klog.FromContext(ctx)
	sent := r
	answer, latency, err := c.requests.send(ctx, n.name, r)
	found := false
	if class := apierr.Classify(err); r.do == status.Create && (class == apierr.AlreadyExists || class == apierr.Forbidden && ctx.Err() == nil) {
		// A Node that is there already is read. Who may not create Nodes may still be
		// allowed to keep one up to date.
		logger.V(4).Info("Looking for an existing Node instead of creating it", "err", err)
		existing, getLatency, getErr := c.requests.send(ctx, n.name, request{do: status.Read})
		switch {
		case getErr == nil:
			answer, found, err = existing, true, nil
		case class == apierr.AlreadyExists: // otherwise the first error is the reason why there is none
			sent, latency, err = request{do: status.Read}, getLatency, getErr
		}
	}
	if err != nil {
		c.failed(ctx, n, sent, err, latency)
		return
	}
	news := n.apply(status.Answered{Node: answer, Found: found, Draw: rand.Float64()})
	switch {
	case r.do == status.Taint:
		logger.V(2).Info("Added taints that the Node lacked")
		c.report.ok(ctx, n, tainting)
	case r.do != status.Read && !found:
		c.report.ok(ctx, n, calling)
	}
	c.report.news(ctx, n, news)
	if news.Wake {
		c.trigger(n.name)
	}
	if r.do == status.Patch {
		logger.V(4).Info("Wrote status", "cause", r.cause, "bytes", len(r.patch), "latency", latency)
		c.report.written(n, Cause(r.cause), r.patch, latency)
	}
}

// failed takes in and reports the error of a request.
func (c *Controller) failed(ctx context.Context, n *node, r request, err error, latency time.Duration) {
	failed := status.Failed{
		Verdict: judge(err, n.name), Err: err, RetryAfter: apierr.RetryAfter(err),
		Committed: r.do == status.Create && apierr.MayHaveCommitted(err), Draw: rand.Float64(),
	}
	if ctx.Err() != nil {
		failed.Verdict = status.HungUp
	} else {
		c.report.failed(n, r.verb(), err, latency)
	}
	news := n.apply(failed)
	c.report.news(ctx, n, news)
	var resting bool
	n.read(func(s *status.State) { resting = s.Resting() })
	if resting {
		c.report.leave(n, (*apierr.Group).Leave)
	}
	if news.Deleted != "" && c.cfg.OnDeleted == DeletedExit && n.name == c.cfg.NodeName {
		c.exit(fmt.Errorf("%w: node %q", ErrNodeDeleted, n.name))
	}
	switch {
	case !news.Counts:
	case r.do == status.Taint:
		c.report.fail(ctx, n, tainting, fmt.Errorf("nodestatus: taint node %q: %w", n.name, err), "Failed to add taints that the Node lacks")
	default:
		c.report.fail(ctx, n, calling, explainCall(n.name, r.verb(), err), "Failed to write node")
	}
}
