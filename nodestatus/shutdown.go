// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
)

// farewell returns the farewell of a node, or nil if OnShutdown leaves the Node.
func (c *Controller) farewell() func(ctx context.Context, name string, st *state) {
	if c.cfg.OnShutdown == ShutdownLeave {
		return nil
	}
	return func(ctx context.Context, name string, st *state) {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.ShutdownTimeout)
		defer cancel()
		c.release(ctx, name, st)
	}
}

// release writes what OnShutdown asks for. While the API server is away it retries
// until ctx is done.
func (c *Controller) release(ctx context.Context, name string, st *state) {
	if last := (&work{Controller: c, name: name, state: st}); last.gateIsClosed(ctx) {
		return // the Node is another process's
	}
	st.mu.Lock()
	phase, uid, view, unsure := st.phase, st.uid, st.view, st.unsure
	st.mu.Unlock()
	switch {
	case phase == PhaseRegistering && unsure:
		// Whether the Node was created only a read can tell.
		node, _, err := c.get(ctx, name)
		if err != nil {
			c.endRelease(ctx, name, st, err)
			return
		}
		uid, view = node.UID, newView(node)
	case phase != PhaseRegistered:
		return
	}
	var err error
	for failures := 1; ; failures++ {
		if c.cfg.OnShutdown == ShutdownUnregister {
			err = c.remove(ctx, name, uid)
		} else {
			err = c.writeNotReady(ctx, name, uid, view)
		}
		if judge(err, name) != away || !sleep(ctx, pause(away, err, failures)) {
			break
		}
	}
	c.endRelease(ctx, name, st, err)
}

// endRelease reports the result of release.
func (c *Controller) endRelease(ctx context.Context, name string, st *state, err error) {
	switch judge(err, name) {
	case accepted:
		klog.FromContext(ctx).V(2).Info("Released node", "node", klog.KRef("", name), "onShutdown", c.cfg.OnShutdown)
	case gone, other: // another client was faster, and the Node is no longer ours
	default:
		c.calling.Fail(ctx, c.cfg.ErrorHandler, &st.calling, explainCall(name, "release", err), "Failed to release node", "onShutdown", c.cfg.OnShutdown)
	}
}

// sleep waits for d. It reports false if ctx is done before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// writeNotReady makes Ready False.
func (c *Controller) writeNotReady(ctx context.Context, name string, uid types.UID, view *view) error {
	shown := view.node()
	if shown == nil {
		return nil
	}
	ready := stamp([]corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: ReasonShutdown, Message: "the node is shutting down",
	}}, shown.Status.Conditions, metav1.Now())
	data, err := difference{}.patch(uid, "", ready)
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	answer, latency, err := c.patch(ctx, name, data)
	if err != nil {
		if hook := c.cfg.Hooks.Failed; hook != nil {
			hook(Failed{NodeName: name, Verb: "patch", Class: apierr.Classify(err).String(), Err: err, Latency: latency})
		}
		return err
	}
	if hook := c.cfg.Hooks.Written; hook != nil {
		hook(Written{NodeName: name, Cause: CauseShutdown, Bytes: len(data), Latency: latency})
	}
	last := &work{Controller: c, name: name, node: &corev1.Node{Status: corev1.NodeStatus{Conditions: ready}}}
	last.reportConditions(ctx, answer, shown)
	return nil
}
