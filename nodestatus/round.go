// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/slots"
)

// round computes the status of a node and makes the calls that follow from it.
// The scheduler runs one round of a node at a time.
func (c *Controller) round(ctx context.Context, name string, st *state) slots.Next {
	c.progress.Beat()
	defer func() {
		c.progress.Beat()
		c.sleeps.tick(time.Now())
	}()
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", klog.KRef("", name)))
	sleeps := c.sleeps.tick(time.Now())
	if st.isLeaving() {
		return c.leave(ctx, name, st)
	}
	if st.idle() {
		return slots.Next{Idle: true}
	}
	node := c.collect(ctx, name, st)
	if node == nil {
		return slots.Next{}
	}
	r := &work{Controller: c, name: name, state: st, node: node, hash: fingerprint(c.seed, node)}
	r.tellSpec()

	s, err := r.situation(sleeps, r.gateIsClosed(ctx))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to compare the status with the API server's")
	}
	next, cause := decide(s)
	klog.FromContext(ctx).V(5).Info("Decided", "step", next, "cause", cause, "changed", s.changed, "drifted", s.drifted, "look", s.look)
	switch next {
	case stepRegister:
		r.register(ctx)
	case stepLook:
		r.cause = cause
		if r.look(ctx) {
			r.write(ctx)
		}
	case stepWrite:
		r.cause = cause
		r.write(ctx)
	}
	after := r.next()
	after.Deadline = time.Now().Add(c.patience())
	return after
}

// work is one round of one node.
type work struct {
	*Controller
	name  string
	state *state
	node  *corev1.Node // what is to be said, without times
	hash  uint64       // of it
	cause Cause

	conflicts int // writes of this round that met another's
}

// maxConflicts is how many writes of a round may meet another's. The one after
// that no longer minds.
const maxConflicts = 2

// situation returns what the choice of a step depends on.
func (r *work) situation(sleeps uint32, closed bool) (situation, error) {
	st := r.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s := situation{
		now: r.now(), phase: st.phase, closed: closed,
		look: st.look, slept: st.sleeps != sleeps, force: st.force, adopted: st.hash == 0, changed: st.hash != r.hash,
		notBefore: st.notBefore, nextReport: st.nextReport, nextDrift: st.nextDrift,
		grace: r.cfg.GracePeriod, interval: r.cfg.SyncInterval,
	}
	if s.slept {
		// Kept as look: the read may need more than this round.
		st.look, st.sleeps = st.look || st.phase == PhaseRegistered, sleeps
	}
	if st.trouble != nil {
		s.failingSince = st.trouble.since
	}
	if !st.foreign || st.phase != PhaseRegistered || s.changed {
		return s, nil
	}
	// Only what somebody else wrote can differ from what was accepted, so a
	// quiet node is never decoded.
	d, err := compare(r.node, st.view.node(), decodeOwnership(st.owned))
	s.drifted = !d.empty()
	if err == nil && !s.drifted {
		st.foreign = false
	}
	return s, err
}

// gateIsClosed asks Gate. When it has opened, the Node is read before it is written,
// unless that was done and a write is owed: another process may have written it.
func (r *work) gateIsClosed(ctx context.Context) bool {
	if r.cfg.Gate == nil {
		return false
	}
	err := r.cfg.Gate(ctx, r.name)
	st := r.state
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

// next returns when the next round is to be.
func (r *work) next() slots.Next {
	st := r.state
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.resting() {
		return slots.Next{Idle: !st.look}
	}
	now := r.now()
	switch {
	case st.notBefore > now:
		// Rounds go on meanwhile: they are what Live and Check look at.
		return slots.Next{Wait: st.notBefore - now, NoLaterThanSlot: true}
	case st.foreign && st.phase == PhaseRegistered && st.nextDrift > now:
		return slots.Next{Wait: st.nextDrift - now, NoLaterThanSlot: true}
	}
	return slots.Next{}
}

// write sends the status and takes in the answer.
func (r *work) write(ctx context.Context) {
	if r.gateIsClosed(ctx) {
		return
	}
	st := r.state
	st.mu.Lock()
	shown, uid, owned := st.view.node(), st.uid, decodeOwnership(st.owned)
	version := ""
	if (st.force || st.watched) && r.conflicts < maxConflicts {
		// The view is that of now, as far as we know, and if it is not we want
		// to hear of it: transition times are made from it.
		version = st.view.resourceVersion
	}
	st.mu.Unlock()
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
	r.accept(ctx, answer, shown)
	klog.FromContext(ctx).V(4).Info("Wrote status", "cause", r.cause, "bytes", len(data), "latency", latency)
	if hook := r.cfg.Hooks.Written; hook != nil {
		hook(Written{NodeName: r.name, Cause: r.cause, Bytes: len(data), Latency: latency})
	}
}
