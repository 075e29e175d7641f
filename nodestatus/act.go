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
		c.gate.ask(ctx, n)
		r, err := n.next()
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to encode the status")
		}
		if err != nil || r.do == status.Nothing {
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
	switch r.do {
	case status.Create:
		c.create(ctx, n, r)
	case status.Read:
		answer, latency, err := c.requests.get(ctx, n.name)
		if err != nil {
			c.failed(ctx, n, "get", err, latency, false)
			return
		}
		c.tell(ctx, n, status.Found{Node: answer})
	case status.Patch:
		answer, latency, err := c.requests.patch(ctx, n.name, r.patch)
		if err != nil {
			c.failed(ctx, n, "patch", err, latency, true)
			return
		}
		c.tell(ctx, n, status.Written{Node: answer, Draw: rand.Float64()})
		klog.FromContext(ctx).V(4).Info("Wrote status", "cause", r.cause, "bytes", len(r.patch), "latency", latency)
		if hook := c.cfg.Hooks.Written; hook != nil {
			hook(Written{NodeName: n.name, Cause: Cause(r.cause), Bytes: len(r.patch), Latency: latency})
		}
	case status.Taint:
		answer, latency, err := c.requests.taint(ctx, n.name, r.patch)
		if err != nil {
			if c.take(ctx, n, "patch", err, latency, false).Counts {
				c.report.tainting.Fail(ctx, c.cfg.ErrorHandler, &n.members.tainting, fmt.Errorf("nodestatus: taint node %q: %w", n.name, err), "Failed to add taints that the Node lacks")
			}
			return
		}
		klog.FromContext(ctx).V(2).Info("Added taints that the Node lacked")
		c.report.tainting.OK(ctx, &n.members.tainting, "Adding taints to nodes works again")
		c.report.news(ctx, n, n.apply(status.Tainted{Node: answer}))
	}
}

// create creates the Node with its status in one request: a Node without a Ready
// condition is schedulable, and a cloud controller deletes one that it does not know. A
// Node that is there already is read.
func (c *Controller) create(ctx context.Context, n *node, r request) {
	answer, latency, err := c.requests.create(ctx, r.create)
	class := apierr.Classify(err)
	switch {
	case err == nil:
		c.tell(ctx, n, status.Created{Node: answer, Draw: rand.Float64()})
		return
	case class == apierr.AlreadyExists:
	case class == apierr.Forbidden && ctx.Err() == nil:
		// Who may not create Nodes may still be allowed to keep one up to date.
		klog.FromContext(ctx).V(4).Info("Creating the Node is forbidden, looking for an existing one", "err", err)
	default:
		c.failed(ctx, n, "create", err, latency, apierr.MayHaveCommitted(err))
		return
	}
	existing, getLatency, getErr := c.requests.get(ctx, n.name)
	switch {
	case getErr == nil:
		c.tell(ctx, n, status.Found{Node: existing})
	case class == apierr.Forbidden:
		c.failed(ctx, n, "create", err, latency, false) // the reason why there is none
	default:
		c.failed(ctx, n, "get", getErr, getLatency, false)
	}
}

// tell takes in the answer of a request.
func (c *Controller) tell(ctx context.Context, n *node, answer status.Event) {
	news := n.apply(answer)
	if _, read := answer.(status.Found); !read {
		c.report.calling.OK(ctx, &n.members.calling, "Writing nodes works again")
	}
	c.report.news(ctx, n, news)
	if news.Wake {
		c.trigger(n.name)
	}
}

// failed takes in and reports the error of a request that is not about taints.
func (c *Controller) failed(ctx context.Context, n *node, verb string, err error, latency time.Duration, committed bool) {
	if c.take(ctx, n, verb, err, latency, committed).Counts {
		c.report.calling.Fail(ctx, c.cfg.ErrorHandler, &n.members.calling, explainCall(n.name, verb, err), "Failed to write node")
	}
}

// take takes in the error of a request.
func (c *Controller) take(ctx context.Context, n *node, verb string, err error, latency time.Duration, committed bool) status.News {
	failed := status.Failed{Verdict: judge(err, n.name), Err: err, RetryAfter: apierr.RetryAfter(err), Committed: committed, Draw: rand.Float64()}
	if ctx.Err() != nil {
		failed.Verdict = status.HungUp
	} else {
		c.report.failed(n, verb, err, latency)
	}
	news := n.apply(failed)
	c.report.news(ctx, n, news)
	var resting bool
	n.read(func(s *status.State) { resting = s.Resting() })
	if resting {
		c.report.leave(n, &c.gate, false)
	}
	if news.Deleted != "" && c.cfg.OnDeleted == DeletedExit && n.name == c.cfg.NodeName {
		c.exit(fmt.Errorf("%w: node %q", ErrNodeDeleted, n.name))
	}
	return news
}
