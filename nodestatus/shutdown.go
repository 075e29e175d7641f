// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// farewell returns the farewell of a node, or nil if OnShutdown leaves the Node.
func (c *Controller) farewell() func(ctx context.Context, name string, n *node) {
	if c.cfg.OnShutdown == ShutdownLeave {
		return nil
	}
	return func(ctx context.Context, _ string, n *node) {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.ShutdownTimeout)
		defer cancel()
		if closed, _ := c.gates.ask(ctx, n); closed {
			return // the Node is another process's
		}
		released, err := c.release(ctx, n)
		verdict := judge(err, n.name)
		if gone := verdict == status.Gone || verdict == status.Other; gone || released && err == nil && c.cfg.OnShutdown == ShutdownUnregister {
			n.apply(status.Unregistered{}) // nothing may have it for an owner from now on
		}
		switch {
		case !released:
		case err == nil:
			klog.FromContext(ctx).V(2).Info("Released node", "node", klog.KRef("", n.name), "onShutdown", c.cfg.OnShutdown)
		case verdict == status.Gone || verdict == status.Other: // another client was faster, and the Node is no longer ours
		default:
			c.report.fail(ctx, n, calling, explainCall(n.name, "release", err), "Failed to release node", "onShutdown", c.cfg.OnShutdown)
		}
	}
}

// release writes what OnShutdown asks for. While the API server is away it retries
// until ctx is done. It reports false if there is nothing to write.
func (c *Controller) release(ctx context.Context, n *node) (bool, error) {
	var phase status.Phase
	var shown *corev1.Node
	n.read(func(s *status.State) { phase, shown = s.Phase(), s.Node() })
	if phase != status.Unsure && phase != status.Registered {
		return false, nil
	}
	last := func() error {
		if shown == nil { // whether the Node was created only a read can tell
			read, _, err := c.requests.send(ctx, n.name, request{do: status.Read})
			if err != nil {
				return err
			}
			shown = read
		}
		if c.cfg.OnShutdown == ShutdownUnregister {
			return c.requests.remove(ctx, n.name, shown.UID)
		}
		return c.writeNotReady(ctx, n, shown)
	}
	retries := backoff.Policy{Base: 200 * time.Millisecond, Cap: 7 * time.Second}
	for failures := 1; ; failures++ {
		err := last()
		if err == nil || judge(err, n.name) != status.Away {
			return true, err
		}
		select {
		case <-time.After(max(retries.Delay(failures), apierr.RetryAfter(err))):
		case <-ctx.Done():
			return true, err
		}
	}
}

// writeNotReady makes the Ready condition of shown False.
func (c *Controller) writeNotReady(ctx context.Context, n *node, shown *corev1.Node) error {
	r := request{do: status.Patch}
	var changes []status.ConditionChange
	r.patch, changes = status.NotReadyPatch(shown, ReasonShutdown, "the node is shutting down", metav1.Now())
	_, latency, err := c.requests.send(ctx, n.name, r)
	if err != nil {
		c.report.failed(n, r.verb(), err, latency)
		return err
	}
	c.report.written(n, CauseShutdown, r.patch, latency)
	c.report.conditions(ctx, n, changes)
	return nil
}
