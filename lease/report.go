// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/internal/slots"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

// The reasons and actions of events.
const (
	reasonForeign   = "LeaseHeldByOther"
	reasonTakenOver = "LeaseTakenOver"
	reasonContended = "LeaseContended"

	actionRenew    = "RenewLease"
	actionTakeOver = "TakeOverLease"
)

// A reporter reports to the log, the hooks, the event recorder and the ErrorHandler.
type reporter struct {
	handler  report.Handler
	recorder events.EventRecorder // may be nil
	hooks    *Hooks
	process  string
	nodes    Nodes // that the leases follow; may be nil

	renewing apierr.Group
	asking   apierr.Group // Gate and Owner
	breaking apierr.Group // invariants
}

// reports is what was reported about one node.
type reports struct {
	phase    Phase // the last one that the hook was called for
	renewing apierr.Member
	asking   apierr.Member
}

func leaseRef(nodeName string) klog.ObjectRef {
	return klog.KRef(corev1.NamespaceNodeLease, nodeName)
}

// turn reports the end of a turn. Latency is that of the last call.
func (r *reporter) turn(ctx context.Context, nodeName string, n *node, consent *plan.Consent, t *plan.Result, latency time.Duration) {
	log, lease := klog.FromContext(ctx), leaseRef(nodeName)
	if t.Vanished {
		r.resync(ctx, nodeName)
		if hook := r.hooks.Deleted; hook != nil {
			hook(Deleted{NodeName: nodeName})
		}
	}
	phase := Phase(n.lease.Phase())
	r.consent(ctx, nodeName, n, phase, consent, t)
	switch {
	case t.Written:
		if log := log.V(4); log.Enabled() { // ten thousand in ten seconds
			log.Info("Renewed node lease", "lease", lease, "created", t.Created, "latency", latency)
		}
		if t.Created {
			log.V(2).Info("Created node lease", "lease", lease)
		}
		r.renewing.OK(ctx, &n.reports.renewing, "Renewing node leases again", "lease", lease)
		if hook := r.hooks.Renewed; hook != nil {
			hook(Renewed{NodeName: nodeName, Latency: latency, Created: t.Created})
		}
	case t.Err != nil:
		r.renewing.Fail(ctx, r.handler, &n.reports.renewing, t.Err, "Failed to renew node lease", "lease", lease)
		if hook := r.hooks.Failed; hook != nil {
			failures, _ := n.lease.Failures()
			hook(Failed{NodeName: nodeName, Class: apierr.Classify(t.Err).String(), Err: t.Err, Failures: failures})
		}
	case t.Skipped:
		log.V(4).Info("Did not write node lease: it was renewed a moment ago", "lease", lease)
	default:
		r.renewing.Leave(&n.reports.renewing) // it does not try
	}
	if t.HeldBack > 0 {
		log.V(4).Info("Node lease was deleted: not creating it with the same owner yet", "lease", lease, "ownerUID", consent.Owner.UID, "wait", t.HeldBack)
	}
	r.phase(ctx, nodeName, n, phase, consent)
	r.others(ctx, nodeName, consent.Owner.UID, t)
	if t.Behind > 0 {
		log.Info("Clock is behind the renew time of a node lease: counting up from there", "lease", lease, "behind", t.Behind)
	}
	if t.Recovered > 0 {
		log.V(2).Info("Renewed a node lease that had expired", "lease", lease, "outage", t.Recovered)
		r.resync(ctx, nodeName)
		if hook := r.hooks.Recovered; hook != nil {
			hook(Recovered{NodeName: nodeName, Outage: t.Recovered})
		}
	}
}

// consent reports the failures of Gate and Owner.
func (r *reporter) consent(ctx context.Context, nodeName string, n *node, phase Phase, consent *plan.Consent, t *plan.Result) {
	lease, m := leaseRef(nodeName), &n.reports.asking
	switch {
	case callback.Failed(consent.Gate):
		r.asking.Fail(ctx, r.handler, m, fmt.Errorf("lease: gate of node %q: %w", nodeName, consent.Gate), "Failed to ask the gate of a node lease", "lease", lease)
	case consent.Gate != nil || phase == PhaseNoOwner || consent.OwnerErr != nil && errors.Is(t.Err, consent.OwnerErr):
		r.asking.Leave(m) // not asked, or reported as the error of the turn
	case consent.OwnerErr != nil:
		r.asking.Fail(ctx, r.handler, m, consent.OwnerErr, "Failed to get the owner of a node lease", "lease", lease)
	default:
		r.asking.OK(ctx, m, "Gates and owners of node leases answer again", "lease", lease)
	}
}

// phase reports a change of phase to the given one.
func (r *reporter) phase(ctx context.Context, nodeName string, n *node, to Phase, consent *plan.Consent) {
	if to == n.reports.phase {
		return
	}
	log, lease := klog.FromContext(ctx), leaseRef(nodeName)
	changed := PhaseChanged{NodeName: nodeName, From: n.reports.phase, To: to}
	n.reports.phase = to
	switch to {
	case PhaseForeign:
		by := n.lease.HeldBy()
		changed.Holder, changed.Process = by.Holder, by.Process
		log.Info("Node lease is held by another process", "lease", lease, "holder", by.Holder, "process", by.Process)
		r.event(ctx, nodeName, consent.Owner.UID, reasonForeign, actionRenew, "Lease is held by %v, not by process %q", by, r.process)
	case PhaseGateClosed:
		changed.Reason = consent.Gate
		log.V(2).Info("Not renewing node lease: the gate is closed", "lease", lease, "reason", consent.Gate)
	case PhaseNoOwner:
		changed.Reason = consent.OwnerErr
		log.V(2).Info("Stopped renewal of node lease: its Node does not exist", "lease", lease)
	case PhaseStopped:
		log.V(4).Info("Node lease is no longer managed", "lease", lease, "from", changed.From) // of thousands at the end of Run
	default:
		log.V(2).Info("Changed phase of node lease", "lease", lease, "from", changed.From, "to", to)
	}
	r.trigger(ctx, nodeName)
	if hook := r.hooks.PhaseChanged; hook != nil {
		hook(changed)
	}
}

// others reports take-overs and contention.
func (r *reporter) others(ctx context.Context, nodeName string, owner types.UID, t *plan.Result) {
	log, lease := klog.FromContext(ctx), leaseRef(nodeName)
	if from := t.TakenOver; from != (plan.Party{}) {
		log.Info("Took over node lease", "lease", lease, "from", from.Holder, "process", from.Process)
		r.event(ctx, nodeName, owner, reasonTakenOver, actionTakeOver, "Took over the lease from %v", from)
		if hook := r.hooks.TakenOver; hook != nil {
			hook(TakenOver{NodeName: nodeName, Holder: from.Holder, Process: from.Process})
		}
	}
	if by := t.Stolen; by != (plan.Party{}) {
		log.Info("Node lease is contended: another process keeps writing it", "lease", lease, "holder", by.Holder, "process", by.Process)
		r.event(ctx, nodeName, owner, reasonContended, actionRenew, "Another process keeps writing the lease as %v: does a second one manage this node?", by)
		if hook := r.hooks.Contended; hook != nil {
			hook(Contended{NodeName: nodeName, Holder: by.Holder, Process: by.Process})
		}
	}
}

// event records a warning about the Node.
func (r *reporter) event(ctx context.Context, nodeName string, owner types.UID, reason, action, note string, args ...any) {
	if r.recorder == nil {
		return
	}
	regarding := &corev1.ObjectReference{APIVersion: plan.NodeAPIVersion, Kind: plan.NodeKind, Name: nodeName, UID: owner}
	related := &corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: corev1.NamespaceNodeLease, Name: nodeName}
	report.Call(ctx, r.handler, "EventRecorder", func() {
		r.recorder.Eventf(regarding, related, corev1.EventTypeWarning, reason, action, note, args...)
	}, "lease", leaseRef(nodeName))
}

// release reports the last turn of a node.
func (r *reporter) release(ctx context.Context, nodeName string, n *node, t *plan.Result, policy ShutdownPolicy) {
	lease := leaseRef(nodeName)
	switch {
	case t.Err != nil:
		err := fmt.Errorf("lease: release of node %q: %w", nodeName, t.Err)
		r.renewing.Fail(ctx, r.handler, &n.reports.renewing, err, "Failed to release node lease", "lease", lease, "onShutdown", policy)
	case t.Released:
		klog.FromContext(ctx).V(2).Info("Released node lease", "lease", lease, "onShutdown", policy)
	}
}

// gone reports that a node is no longer managed.
func (r *reporter) gone(ctx context.Context, nodeName string, n *node) {
	r.renewing.Retire(&n.reports.renewing)
	r.asking.Retire(&n.reports.asking)
	r.phase(ctx, nodeName, n, PhaseStopped, &plan.Consent{})
}

// broken reports an error of this package.
func (r *reporter) broken(ctx context.Context, nodeName string, err error) {
	r.breaking.Fail(ctx, r.handler, &apierr.Member{}, err, "Node lease is in a state that must not be", "lease", leaseRef(nodeName))
}

// overloaded reports that the workers can't do all renewals in time, or can again.
func (r *reporter) overloaded(ctx context.Context, load slots.Load, overloaded bool) {
	log := klog.FromContext(ctx)
	event := Overloaded{
		Nodes: load.Names, RenewInterval: load.Interval, Workers: load.Workers, Visit: load.Run, Late: load.Late, Ended: !overloaded,
	}
	if overloaded {
		log.Info(event.String(), "nodes", load.Names, "renewInterval", load.Interval, "workers", load.Workers, "visit", load.Run, "late", load.Late)
	} else {
		log.Info("Node leases are visited in time again")
	}
	if hook := r.hooks.Overloaded; hook != nil {
		hook(event)
	}
}
