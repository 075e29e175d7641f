// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
)

// register creates the Node with its status in one request: a Node without a
// Ready condition is schedulable, and a cloud controller deletes one that it
// does not know. A Node that is there already is adopted.
func (r *work) register(ctx context.Context) {
	r.state.mu.Lock()
	r.state.look = false // registering answers the question
	r.state.mu.Unlock()

	node := r.node.DeepCopy()
	node.UID, node.ResourceVersion, node.CreationTimestamp = "", "", metav1.Time{}
	node.Spec.Taints = withTaints(node.Spec.Taints, missingTaints(r.cfg.KeepTaints, node.Spec.Taints))
	node.Status.Conditions = stamp(node.Status.Conditions, nil, metav1.Now())
	answer, latency, err := r.create(ctx, node)
	r.state.mu.Lock()
	r.state.unsure = apierr.MayHaveCommitted(err)
	r.state.mu.Unlock()
	switch v := judge(err, r.name); {
	case v == accepted:
		r.accept(ctx, answer, nil, nil)
		return
	case v == present:
	case apierr.Classify(err) == apierr.Forbidden && ctx.Err() == nil:
		// Who may not create Nodes may still be allowed to keep one up to date.
		klog.FromContext(ctx).V(4).Info("Creating the Node is forbidden, looking for an existing one", "err", err)
	default:
		r.failed(ctx, "create", err, latency)
		return
	}
	existing, getLatency, getErr := r.get(ctx, r.name)
	switch {
	case getErr == nil:
		r.adopt(ctx, existing)
		r.write(ctx)
	case apierr.Classify(err) == apierr.Forbidden:
		r.failed(ctx, "create", err, latency) // the reason why there is none
	default:
		r.failed(ctx, "get", getErr, getLatency)
	}
}

// adopt makes node the object that is written from now on. The node is registered
// with that, before the first write: Gate may not let us write before the lease
// has the Node for its owner. Values that an earlier process has written are ours, and
// all others belong to other clients.
func (r *work) adopt(ctx context.Context, node *corev1.Node) {
	former := formerOwnership(node)
	for _, kind := range r.cfg.FormerConditions {
		former.conditions.Insert(string(kind))
	}
	st := r.state
	st.mu.Lock()
	st.forget()
	st.phase, st.force, st.taintsDue = PhaseRegistered, true, true
	st.uid, st.view, st.owned = node.UID, newView(node), former.encode()
	st.mu.Unlock()
	r.cause = CauseAdopt
	r.announce(ctx, node, false)
}

// forget drops the state of the object that was managed so far.
func (st *state) forget() {
	st.view, st.uid, st.hash, st.owned = nil, "", 0, unique.Handle[string]{}
	st.look, st.force, st.foreign, st.specChanged = false, false, false, false
	st.notBefore, st.nextDrift = 0, 0
}

// look reads the Node. It reports whether its status is now to be written.
func (r *work) look(ctx context.Context) bool {
	st := r.state
	st.mu.Lock()
	st.look = false // before the read: a request that comes during it wants another
	phase, uid, held := st.phase, st.uid, st.view
	st.mu.Unlock()
	node, latency, err := r.get(ctx, r.name)
	switch {
	case err == nil && phase == PhaseRegistered && node.UID == uid:
		st.mu.Lock()
		defer st.mu.Unlock()
		st.specChanged = st.specChanged || specDiffers(st.view.node(), node)
		st.seeAnswer(node, held)
		st.force = true
		return true
	case err == nil && phase == PhaseRegistered:
		return r.replaced(ctx, node)
	case err == nil:
		r.adopt(ctx, node) // it was gone, and a look was asked for
		return true
	case phase != PhaseRegistered && judge(err, r.name) == gone:
		r.rest() // still gone
		return false
	}
	st.requestLook()
	r.failed(ctx, "get", err, latency)
	return false
}

// replaced applies OnReplaced. It reports whether the status is to be written
// to the new object.
func (r *work) replaced(ctx context.Context, node *corev1.Node) bool {
	st := r.state
	st.mu.Lock()
	old := st.uid
	st.forget()
	st.phase = PhaseReplaced
	st.mu.Unlock()
	klog.FromContext(ctx).Info("Node was replaced by another object of the same name", "oldUID", old, "newUID", node.UID, "onReplaced", r.cfg.OnReplaced)
	if hook := r.cfg.Hooks.Replaced; hook != nil {
		hook(Replaced{NodeName: r.name, OldUID: old, NewUID: node.UID, Policy: r.cfg.OnReplaced})
	}
	r.event(ctx, r.name, node.UID, corev1.EventTypeWarning, reasonReplaced, actionRegister, fmt.Sprintf("The Node was replaced by another object: its UID was %s", old))
	if r.cfg.OnReplaced == ReplacedAdopt {
		r.adopt(ctx, node)
		return true
	}
	r.rest()
	if r.name == r.cfg.NodeName {
		r.exit(fmt.Errorf("%w: node %q", ErrNodeReplaced, r.name))
	}
	return false
}

// rest ends the failures of a node that a policy has put to rest: it no longer
// tries, and must not hold up the reports about the others.
func (r *work) rest() {
	st := r.state
	st.mu.Lock()
	resting := st.resting()
	if resting {
		st.trouble = nil
	}
	st.mu.Unlock()
	if resting {
		r.calling.Leave(&st.calling)
		r.setting.Leave(&st.setting)
		r.invalid.Leave(&st.invalid)
		r.asking.Leave(&st.asking)
	}
}

// gone applies OnDeleted.
func (r *work) gone(ctx context.Context) {
	st := r.state
	st.mu.Lock()
	uid := st.uid
	st.forget()
	st.trouble = nil
	st.phase = PhaseDeleted
	if r.cfg.OnDeleted == DeletedReregister {
		st.phase = PhaseRegistering
		// The client that deleted it may want to see it gone; a fleet's nodes do
		// not come back as one.
		st.notBefore = r.now() + r.cfg.SyncInterval + time.Duration(rand.Float64()/2*float64(r.cfg.SyncInterval))
	}
	st.mu.Unlock()
	klog.FromContext(ctx).Info("Node was deleted by another client", "uid", uid, "onDeleted", r.cfg.OnDeleted)
	if hook := r.cfg.Hooks.Deleted; hook != nil {
		hook(Deleted{NodeName: r.name, UID: uid, Policy: r.cfg.OnDeleted})
	}
	r.rest()
	if r.cfg.OnDeleted == DeletedExit && r.name == r.cfg.NodeName {
		r.exit(fmt.Errorf("%w: node %q", ErrNodeDeleted, r.name))
	}
}

// failed takes in the error of a call.
func (r *work) failed(ctx context.Context, verb string, err error, latency time.Duration) {
	if ctx.Err() != nil {
		return // we hung up
	}
	v := judge(err, r.name)
	if hook := r.cfg.Hooks.Failed; hook != nil {
		hook(Failed{NodeName: r.name, Verb: verb, Class: apierr.Classify(err).String(), Err: err, Latency: latency})
	}
	st := r.state
	st.mu.Lock()
	registered := st.phase == PhaseRegistered
	st.mu.Unlock()
	switch {
	case v == gone && registered:
		r.gone(ctx)
		return
	case v == other && verb == "patch" && r.conflicts < maxConflicts:
		// Another client was faster, or it is another object: one read decides.
		r.conflicts++
		if r.look(ctx) {
			r.write(ctx)
		}
		return
	}
	r.count(v, err)
	r.calling.Fail(ctx, r.cfg.ErrorHandler, &st.calling, explainCall(r.name, verb, err), "Failed to write node")
}

// count notes a failed call and sets the time before which there is no other.
func (r *work) count(v verdict, err error) {
	st := r.state
	st.mu.Lock()
	defer st.mu.Unlock()
	now := r.now()
	if st.trouble == nil {
		st.trouble = &trouble{since: now}
	}
	t := st.trouble
	t.failures++
	t.err = err
	tries := t.failures
	if v == refused {
		if t.refusals == 0 {
			t.refusedSince = now
		}
		t.refusals++
		tries = t.refusals
	} else {
		t.refusals, t.refusedSince = 0, 0
	}
	st.notBefore = now + pause(v, err, tries)
}
