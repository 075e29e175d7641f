// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/slots"
)

// round computes the status of a node and asks for the call that follows from it.
// The scheduler runs one round of a node at a time.
func (c *Controller) round(ctx context.Context, name string, st *state) slots.Next {
	c.progress.Beat()
	defer func() {
		c.progress.Beat()
		c.sleeps.tick(time.Now())
	}()
	ctx = withNode(ctx, name)
	st.noteSleeps(c.sleeps.tick(time.Now()))
	switch {
	case c.nodes.Leaving(name):
		c.queue.add(name)
		return slots.Next{}
	case st.idle():
		return slots.Next{Idle: true}
	}
	node, hash := c.collect(ctx, name, st)
	if node == nil {
		return slots.Next{}
	}
	r := &work{Controller: c, name: name, state: st, node: node, hash: hash}
	r.reportSpec()
	r.call(ctx)
	next := slots.Next{Idle: st.idle(), Wait: r.untilCall(), NoLaterThanSlot: true}
	next.Deadline = time.Now().Add(c.patience())
	return next
}

// withNode adds the node to the context's logger.
func withNode(ctx context.Context, name string) context.Context {
	return klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", klog.KRef("", name)))
}

// call asks for a call with the status that was computed, if there is one to be made.
func (r *work) call(ctx context.Context) {
	next, _ := r.decide(ctx)
	r.state.mu.Lock()
	r.state.pending = nil
	if next != stepNone {
		r.state.pending = r
	}
	r.state.mu.Unlock()
	if next != stepNone {
		r.queue.add(r.name)
	}
}

// act makes the call that a round has asked for, if it is still to be made. The
// queue makes one call of a node at a time.
func (c *Controller) act(ctx context.Context, name string) {
	ctx = withNode(ctx, name)
	if c.nodes.Part(ctx, name) {
		return
	}
	st, ok := c.nodes.Get(name)
	if !ok {
		return
	}
	st.mu.Lock()
	r := st.pending
	st.pending = nil
	st.mu.Unlock()
	if r == nil {
		return
	}
	next, cause := r.decide(ctx)
	if next == stepTaints {
		r.keepTaints(ctx)
		next, cause = r.decide(ctx) // there may be a status to write as well
	}
	r.cause = cause
	switch next {
	case stepRegister:
		r.register(ctx)
	case stepLook:
		if r.look(ctx) {
			r.write(ctx)
		}
	case stepWrite:
		r.write(ctx)
	}
	switch wait := r.untilCall(); {
	case wait > 0:
		c.nodes.TriggerAfter(name, wait)
	case st.wantsRound():
		c.nodes.Trigger(name)
	}
}

// decide returns the next step, and its cause.
func (r *work) decide(ctx context.Context) (step, Cause) {
	s, err := r.situation(r.gateIsClosed(ctx))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to compare the status with the API server's")
	}
	next, cause := decide(s)
	klog.FromContext(ctx).V(5).Info("Decided", "step", next, "cause", cause, "changed", s.changed, "drifted", s.drifted, "look", s.look)
	return next, cause
}

// work is the status of one node that a round has computed, and the call with it.
type work struct {
	*Controller
	name  string
	state *state
	node  *corev1.Node // the status to write, without times
	hash  uint64       // of it
	cause Cause

	conflicts int // writes of this round that conflicted
}

// maxConflicts is the number of writes of a round that may conflict with another
// client's. The next one carries no resourceVersion.
const maxConflicts = 2

// situation returns the input of decide.
func (r *work) situation(closed bool) (situation, error) {
	st := r.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s := situation{
		now: r.now(), phase: st.phase, closed: closed,
		look: st.look, force: st.force, adopted: st.hash == 0, changed: st.hash != r.hash,
		notBefore: st.notBefore, nextReport: st.nextReport, nextDrift: st.nextDrift,
		grace: r.cfg.GracePeriod, interval: r.cfg.SyncInterval,
	}
	s.waits, s.taints = r.waits(), r.lacksTaints()
	if st.trouble != nil {
		s.failingSince = st.trouble.since
	}
	if !st.foreign || st.phase != PhaseRegistered || s.changed {
		return s, nil
	}
	// Only another client's write can make the Node differ from the accepted status,
	// so a quiet node is never decoded.
	d, err := compare(r.node, st.view.node(), st.removable())
	s.drifted = !d.empty()
	if err == nil && !s.drifted {
		st.foreign = false
	}
	return s, err
}

// waits reports whether an object that was there before is not written yet, because
// a setter that has not succeeded may do so soon. st.mu must be held.
func (r *work) waits() bool {
	st := r.state
	return !st.complete && st.phase == PhaseRegistered && st.hash == 0 && r.now()-st.firstRound < r.cfg.GracePeriod
}

// gateIsClosed asks Gate. When it has opened, the Node is read before it is written,
// unless that was done and a write is owed: another process may have written it.
func (r *work) gateIsClosed(ctx context.Context) bool {
	if r.cfg.Gate == nil {
		return false
	}
	st := r.state
	err := callback.Contain("Gate", func() error { return r.cfg.Gate(ctx, r.name) })
	if _, panicked := errors.AsType[*callback.PanicError](err); panicked {
		r.asking.Fail(ctx, r.cfg.ErrorHandler, &st.asking, fmt.Errorf("nodestatus: gate of node %q: %w", r.name, err), "Failed to ask the gate of the Node")
	} else {
		r.asking.OK(ctx, &st.asking, "Gates of nodes answer again")
	}
	st.mu.Lock()
	was := st.gated
	st.gated = err != nil
	if was && err == nil && st.phase == PhaseRegistered && !st.force {
		st.look = true
	}
	st.mu.Unlock()
	switch {
	case err != nil && !was:
		klog.FromContext(ctx).V(2).Info("Not writing the Node: the gate is closed", "reason", err)
	case err == nil && was:
		klog.FromContext(ctx).V(2).Info("Writing the Node again: the gate is open")
	}
	return err != nil
}

// untilCall returns the time until the next call is allowed, or 0. Rounds go on in the
// meantime, because Live and Check depend on them.
func (r *work) untilCall() time.Duration {
	st := r.state
	st.mu.Lock()
	defer st.mu.Unlock()
	now := r.now()
	switch {
	case st.resting():
		return 0
	case st.notBefore > now:
		return st.notBefore - now
	case st.foreign && st.phase == PhaseRegistered && st.nextDrift > now:
		return st.nextDrift - now
	}
	return 0
}

// write sends the status and records the answer.
func (r *work) write(ctx context.Context) {
	if r.gateIsClosed(ctx) {
		return
	}
	st := r.state
	st.mu.Lock()
	if r.waits() {
		st.mu.Unlock()
		return
	}
	held, uid, owned := st.view, st.uid, st.removable()
	version := ""
	if (st.force || st.watched) && r.conflicts < maxConflicts {
		// The view is the present state, as far as we know. If it is not the write
		// must conflict, because transition times are computed from the view.
		version = held.resourceVersion
	}
	st.mu.Unlock()
	shown := held.node()
	d, err := compare(r.node, shown, owned)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to compare the status with the API server's")
		return
	}
	conditions := stamp(r.node.Status.Conditions, shown.Status.Conditions, metav1.Now())
	data, err := d.patch(uid, version, conditions)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to encode the status")
		return
	}
	answer, latency, err := r.patch(ctx, r.name, data)
	if err != nil {
		r.failed(ctx, "patch", err, latency)
		return
	}
	r.accept(ctx, answer, shown, held)
	klog.FromContext(ctx).V(4).Info("Wrote status", "cause", r.cause, "bytes", len(data), "latency", latency)
	if hook := r.cfg.Hooks.Written; hook != nil {
		hook(Written{NodeName: r.name, Cause: r.cause, Bytes: len(data), Latency: latency})
	}
}
