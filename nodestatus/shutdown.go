// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// releaseAll does what OnShutdown asks for, for all nodes, within
// ShutdownTimeout.
func (c *Controller) releaseAll(ctx context.Context) {
	if c.cfg.OnShutdown == ShutdownLeave {
		return
	}
	ctx, cancel := lifecycle.Shutdown(ctx, c.cfg.ShutdownTimeout)
	defer cancel()
	var writes sync.WaitGroup
	free := make(chan struct{}, c.cfg.Workers)
	for _, name := range c.nodes.Names() {
		st, ok := c.nodes.Get(name)
		if !ok {
			continue
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			klog.FromContext(ctx).Info("Shutdown timed out before every node was released", "onShutdown", c.cfg.OnShutdown)
			break
		}
		writes.Go(func() {
			defer func() { <-free }()
			c.release(ctx, name, st)
		})
	}
	writes.Wait()
}

// releaseRemoved says farewell to a node that Remove was called for.
func (c *Controller) releaseRemoved(ctx context.Context, name string, st *state) {
	farewell, cancel := context.WithTimeout(ctx, c.cfg.ShutdownTimeout)
	defer cancel()
	c.release(farewell, name, st)
	if ctx.Err() != nil {
		return // Run ends, and says farewell to all that are left
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.leaving = false
	if st.rejoin {
		// Served again, from the start: it may have been unregistered.
		st.rejoin = false
		st.forget()
		st.phase = PhaseRegistering
		c.nodes.Trigger(name)
		return
	}
	st.left = true
	c.nodes.Remove(name)
	c.retire(st)
}

// markLeaving makes the next round the last.
func (st *state) markLeaving() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.leaving, st.rejoin = true, false
}

// isLeaving reports whether this round is to be the last.
func (st *state) isLeaving() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.leaving
}

// addAgain makes a node that is leaving begin again after its last round. It
// reports false where that is over: then the scheduler can take it again.
func (st *state) addAgain() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.rejoin = st.leaving
	return !st.left
}

// release does it for one node, and tries again until ctx is done where the
// API server is away.
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

// endRelease says how the farewell to a node has ended.
func (c *Controller) endRelease(ctx context.Context, name string, st *state, err error) {
	switch judge(err, name) {
	case accepted:
		klog.FromContext(ctx).V(2).Info("Released node", "node", klog.KRef("", name), "onShutdown", c.cfg.OnShutdown)
	case gone, other: // somebody was faster, and it is no longer ours
	default:
		c.calling.Fail(ctx, c.cfg.ErrorHandler, &st.calling, explainCall(name, "release", err), "Failed to release node", "onShutdown", c.cfg.OnShutdown)
	}
}

// sleep reports false where ctx is done before d is over.
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
