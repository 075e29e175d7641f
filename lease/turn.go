// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/internal/slots"
)

// fieldManager is the name of this writer in managedFields.
const fieldManager = "kubewright-lease"

// The reasons and actions of events.
const (
	reasonForeign   = "LeaseHeldByOther"
	reasonTakenOver = "LeaseTakenOver"
	reasonContended = "LeaseContended"

	actionRenew    = "RenewLease"
	actionTakeOver = "TakeOverLease"
)

// visit runs the turn of a node. The scheduler calls it.
func (c *Controller) visit(ctx context.Context, nodeName string, n *node) slots.Next {
	defer c.progress.Beat()
	if c.nodes.Part(ctx, nodeName) {
		return slots.Next{}
	}
	if nodes := c.nodes.Len(); c.rateLimit.short(nodes, c.cfg.RenewInterval) {
		klog.FromContext(ctx).Info("Client allows fewer requests a second than the node leases need: renewals will be late", "nodes", nodes, "renewInterval", c.cfg.RenewInterval)
	}
	t := &turn{nodeName: nodeName, holder: c.holder(nodeName), process: c.process, mayFail: nodeName == c.cfg.NodeName}
	t.gateErr = c.gate(ctx, nodeName)
	if t.gateErr == nil {
		t.owner, t.ownerErr = c.owner(ctx, nodeName)
	}
	if ctx.Err() != nil {
		return slots.Next{} // answers under a dead context mean nothing
	}
	n.mu.Lock()
	next := n.begin(&c.rules, t, c.now())
	n.mu.Unlock()
	begun := time.Now()
	for next != done && ctx.Err() == nil {
		begun = time.Now()
		next = c.step(ctx, n, t, next)
	}
	if ctx.Err() == nil || t.written {
		c.report(ctx, n, t, time.Since(begun))
	}
	if n.renewed != never {
		t.next.Deadline = c.epoch.Add(n.renewed + c.cfg.Duration)
	}
	return t.next
}

// step carries out a step of a turn and returns the next one.
func (c *Controller) step(ctx context.Context, n *node, t *turn, did step) step {
	if did == ask {
		if hook := c.cfg.Hooks.Deleted; hook != nil {
			hook(Deleted{NodeName: t.nodeName})
		}
		t.owner, t.ownerErr = c.owner(ctx, t.nodeName)
		if ctx.Err() != nil {
			return done
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.asked(&c.rules, t, c.now())
	}
	lease, err := c.send(ctx, n, t, did)
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil && err != nil {
		if did != get {
			n.mayBeStored(t)
		}
		if t.takeFrom != (party{}) {
			n.forget() // it may still be another's
		}
		return done
	}
	return n.after(&c.rules, t, did, lease, err, c.now())
}

// send sends the request of a step.
func (c *Controller) send(ctx context.Context, n *node, t *turn, did step) (lease *coordinationv1.Lease, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	ctx, ended := c.reset.begin(ctx)
	switch did {
	case create:
		lease, err = c.leases.Create(ctx, n.object(&c.rules, t, c.now()), metav1.CreateOptions{FieldManager: fieldManager})
	case update:
		lease, err = c.leases.Update(ctx, n.object(&c.rules, t, c.now()), metav1.UpdateOptions{FieldManager: fieldManager})
	default:
		lease, err = c.leases.Get(ctx, t.nodeName, metav1.GetOptions{})
	}
	lease, err = apierr.Answer(lease, err, t.nodeName) // an answer about another object is no renewal
	ended(err)
	return lease, err
}

// gate asks Gate.
func (c *Controller) gate(ctx context.Context, nodeName string) error {
	if c.cfg.Gate == nil {
		return nil
	}
	limit := c.cfg.RenewInterval / 4
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := callback.Contain("Gate", func() error { return c.cfg.Gate(ctx, nodeName) }); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("lease: gate of node %q: no answer within %v: %w", nodeName, limit, ctx.Err())
	}
	return nil
}

// owner asks Owner.
func (c *Controller) owner(ctx context.Context, nodeName string) (metav1.OwnerReference, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RenewInterval/4)
	defer cancel()
	return callback.Get("Owner", func() (metav1.OwnerReference, error) { return c.cfg.Owner(ctx, nodeName) })
}

// holder returns our holder identity for the lease of a node.
func (c *Controller) holder(nodeName string) string {
	if c.cfg.HolderIdentity != "" {
		return c.cfg.HolderIdentity
	}
	return nodeName
}

// report reports the outcome of a turn to the log, the hooks, the event recorder and
// the readiness checker. Latency is that of the last call.
func (c *Controller) report(ctx context.Context, n *node, t *turn, latency time.Duration) {
	log := klog.FromContext(ctx)
	lease := klog.KRef(corev1.NamespaceNodeLease, t.nodeName)
	hooks := &c.cfg.Hooks

	_, gatePanicked := errors.AsType[*callback.PanicError](t.gateErr)
	switch {
	case gatePanicked:
		c.asking.Fail(ctx, c.cfg.ErrorHandler, &n.asking, fmt.Errorf("lease: gate of node %q: %w", t.nodeName, t.gateErr), "Failed to ask the gate of a node lease", "lease", lease)
	case t.gateErr != nil || n.phase == PhaseNoOwner || t.ownerErr != nil && errors.Is(t.err, t.ownerErr):
		c.asking.Leave(&n.asking) // not asked, or reported below
	case t.ownerErr != nil:
		c.asking.Fail(ctx, c.cfg.ErrorHandler, &n.asking, explainOwner(t.nodeName, t.ownerErr), "Failed to get the owner of a node lease", "lease", lease)
	default:
		c.asking.OK(ctx, &n.asking, "Gates and owners of node leases answer again", "lease", lease)
	}

	switch {
	case t.written:
		if log := log.V(4); log.Enabled() { // ten thousand in ten seconds
			log.Info("Renewed node lease", "lease", lease, "created", t.created, "latency", latency)
		}
		if t.created {
			log.V(2).Info("Created node lease", "lease", lease)
		}
		c.ready.Mark()
		c.renewing.OK(ctx, &n.renewing, "Renewing node leases again", "lease", lease)
		if hooks.Renewed != nil {
			hooks.Renewed(Renewed{NodeName: t.nodeName, Latency: latency, Created: t.created})
		}
	case t.err != nil:
		c.renewing.Fail(ctx, c.cfg.ErrorHandler, &n.renewing, t.err, "Failed to renew node lease", "lease", lease)
		if hooks.Failed != nil {
			hooks.Failed(Failed{NodeName: t.nodeName, Class: t.class.String(), Err: t.err, Failures: n.trouble.failures})
		}
	case t.skipped:
		log.V(4).Info("Did not write node lease: it was renewed a moment ago", "lease", lease)
	default:
		c.renewing.Leave(&n.renewing) // it does not try
	}
	if t.again && !t.written && t.err == nil && n.phase == PhasePending {
		log.V(2).Info("Node lease was deleted again: not creating it with the same owner at once", "lease", lease, "ownerUID", t.owner.UID)
	}
	if t.vanished && !t.again && t.next.Wait > 0 && t.err == nil {
		log.V(4).Info("Node lease was deleted: not creating it with the same owner yet", "lease", lease, "ownerUID", t.owner.UID, "wait", t.next.Wait)
	}
	c.reportPhase(ctx, n, t, lease)
	c.reportForeign(ctx, n, t, lease)
	if t.behind > 0 {
		log.Info("Clock is behind the renew time of a node lease: counting up from there", "lease", lease, "behind", t.behind)
	}
	if t.recovered > 0 {
		log.V(2).Info("Renewed a node lease that had expired", "lease", lease, "outage", t.recovered)
		if hooks.Recovered != nil {
			hooks.Recovered(Recovered{NodeName: t.nodeName, Outage: t.recovered})
		}
	}
	if t.fatal != nil {
		c.stop(t.fatal)
	}
}

// reportPhase reports a change of phase.
func (c *Controller) reportPhase(ctx context.Context, n *node, t *turn, lease klog.ObjectRef) {
	if n.phase == n.reported {
		return
	}
	log := klog.FromContext(ctx)
	changed := PhaseChanged{NodeName: t.nodeName, From: n.reported, To: n.phase}
	n.reported = n.phase
	switch n.phase {
	case PhaseForeign:
		holder := n.trouble.foreign.party
		changed.Holder, changed.Process = holder.holder, holder.process
		log.Info("Node lease is held by another process", "lease", lease, "holder", changed.Holder, "process", changed.Process, "onForeign", c.cfg.OnForeign)
		c.event(ctx, t, corev1.EventTypeWarning, reasonForeign, actionRenew, "Lease is held by %v, not by %v", holder, party{t.holder, t.process.name})
	case PhasePaused:
		changed.Reason = t.gateErr
		log.V(2).Info("Paused renewal of node lease", "lease", lease, "reason", t.gateErr)
	case PhaseNoOwner:
		changed.Reason = t.ownerErr
		log.V(2).Info("Stopped renewal of node lease: its Node does not exist", "lease", lease)
	case PhaseStopped:
		log.V(4).Info("Node lease is not served any more", "lease", lease, "from", changed.From) // of thousands at the end of Run
	default:
		log.V(2).Info("Changed phase of node lease", "lease", lease, "from", changed.From, "to", changed.To)
	}
	if hook := c.cfg.Hooks.PhaseChanged; hook != nil {
		hook(changed)
	}
}

// gone reports that a node is no longer managed. It is called after its last turn.
func (c *Controller) gone(ctx context.Context, nodeName string, n *node) {
	n.mu.Lock()
	n.phase = PhaseStopped
	n.mu.Unlock()
	c.renewing.Retire(&n.renewing)
	c.asking.Retire(&n.asking)
	c.reportPhase(ctx, n, &turn{nodeName: nodeName}, klog.KRef(corev1.NamespaceNodeLease, nodeName))
}

// reportForeign reports take-overs and contention.
func (c *Controller) reportForeign(ctx context.Context, n *node, t *turn, lease klog.ObjectRef) {
	log := klog.FromContext(ctx)
	if from := t.takenOver; from != (party{}) {
		log.Info("Took over node lease", "lease", lease, "from", from.holder, "process", from.process)
		c.event(ctx, t, corev1.EventTypeWarning, reasonTakenOver, actionTakeOver, "Took over the lease from %v", from)
		if hook := c.cfg.Hooks.TakenOver; hook != nil {
			hook(TakenOver{NodeName: t.nodeName, Holder: from.holder, Process: from.process})
		}
	}
	if by := t.stolen; by != (party{}) {
		log.Info("Node lease is contended: another process keeps writing it", "lease", lease, "holder", by.holder, "process", by.process)
		c.event(ctx, t, corev1.EventTypeWarning, reasonContended, actionRenew, "Another process keeps writing the lease as %v: does a second one serve this node?", by)
		if hook := c.cfg.Hooks.Contended; hook != nil {
			hook(Contended{NodeName: t.nodeName, Holder: by.holder, Process: by.process})
		}
	}
}

// event records an event about the Node.
func (c *Controller) event(ctx context.Context, t *turn, eventType, reason, action, note string, args ...any) {
	if c.cfg.EventRecorder == nil {
		return
	}
	regarding := &corev1.ObjectReference{APIVersion: nodeAPIVersion, Kind: nodeKind, Name: t.nodeName, UID: t.owner.UID}
	related := &corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: corev1.NamespaceNodeLease, Name: t.nodeName}
	report.Call(ctx, c.cfg.ErrorHandler, "EventRecorder", func() {
		c.cfg.EventRecorder.Eventf(regarding, related, eventType, reason, action, note, args...)
	}, "lease", klog.KRef(related.Namespace, related.Name))
}
