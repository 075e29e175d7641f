// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// The reasons and actions of events.
const (
	reasonRegistered       = "NodeRegistered"
	reasonReplaced         = "NodeReplaced"
	reasonNodeReady        = "NodeReady"
	reasonNodeNotReady     = "NodeNotReady"
	reasonConditionChanged = "NodeConditionChanged"
	reasonInvalid          = "NodeStatusInvalid"
	reasonRebooted         = "Rebooted" // as the kubelet's

	actionRegister = "Register"
	actionUpdate   = "UpdateStatus"
)

// accept takes in the answer to a write: answer is the Node as it is now, shown
// as it was known before, from the view held; both are nil for one that was created.
func (r *work) accept(ctx context.Context, answer, shown *corev1.Node, held *view) {
	owned, err := ownershipOf(r.node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to note what was written")
	}
	r.state.mu.Lock()
	complete, before := r.state.complete, decodeOwnership(r.state.owned)
	r.state.mu.Unlock()
	if !complete {
		owned.add(before)
	}
	// The answer shows whether the Node has our values now: an admission
	// webhook, or a write that came between, may have changed it.
	d, err := compare(r.node, answer, ownership{})
	clobbered := err == nil && !d.empty()

	st := r.state
	st.mu.Lock()
	now := r.now()
	first := st.phase != PhaseRegistered
	st.phase, st.uid = PhaseRegistered, answer.UID
	st.owned, st.hash = owned.encode(), r.hash
	st.lastWrite = now
	st.nextReport = nextReportAfter(now, r.cfg.ReportInterval, r.cause, rand.Float64())
	st.seeAnswer(answer, held)
	switch {
	case st.view.resourceVersion != answer.ResourceVersion:
		// The event handler has shown something newer in the meantime.
	case clobbered && r.cause == CauseDrift:
		// It was written again, and changed again: the other client will do so
		// every time. The next report writes it again.
		st.foreign = false
	default:
		st.foreign = clobbered
	}
	if r.cause == CauseDrift {
		st.nextDrift = now + r.cfg.SyncInterval
	}
	st.force, st.notBefore = false, 0
	st.specChanged = st.specChanged || shown != nil && specDiffers(shown, answer)
	trouble := st.trouble
	st.trouble = nil
	st.mu.Unlock()

	if trouble != nil {
		if hook := r.cfg.Hooks.Recovered; hook != nil {
			hook(Recovered{NodeName: r.name, Outage: now - trouble.since})
		}
	}
	r.calling.OK(ctx, &st.calling, "Writing nodes works again")
	if first {
		r.announce(ctx, answer, true)
	}
	r.reportConditions(ctx, answer, shown)
	r.reportReboot(ctx, answer, shown)
	r.reportSpec()
}

// reportReboot reports that the machine was started again since the Node was shown.
func (r *work) reportReboot(ctx context.Context, answer, shown *corev1.Node) {
	if shown == nil {
		return
	}
	before, now := shown.Status.NodeInfo.BootID, r.node.Status.NodeInfo.BootID
	if before == "" || now == "" || before == now {
		return
	}
	klog.FromContext(ctx).V(2).Info("Machine was rebooted", "oldBootID", before, "newBootID", now)
	if hook := r.cfg.Hooks.Rebooted; hook != nil {
		hook(Rebooted{NodeName: r.name, OldBootID: before, NewBootID: now})
	}
	r.event(ctx, r.name, answer.UID, corev1.EventTypeWarning, reasonRebooted, actionUpdate, "The machine was rebooted, boot ID: "+now)
}

// specDiffers reports whether another client has changed the spec.
func specDiffers(before, after *corev1.Node) bool {
	return before != nil && !apiequality.Semantic.DeepEqual(before.Spec, after.Spec)
}

// announce reports that the node is registered.
func (r *work) announce(ctx context.Context, node *corev1.Node, created bool) {
	r.ready.Mark()
	klog.FromContext(ctx).V(2).Info("Registered node", "uid", node.UID, "created", created)
	if hook := r.cfg.Hooks.Registered; hook != nil {
		hook(Registered{NodeName: r.name, Node: node.DeepCopy(), Created: created})
	}
	r.event(ctx, r.name, node.UID, corev1.EventTypeNormal, reasonRegistered, actionRegister, "Registered Node "+r.name)
}

// reportConditions reports which of our conditions have changed. It is called when
// the API server has accepted them, so each report is true, and is made once.
func (r *work) reportConditions(ctx context.Context, answer, shown *corev1.Node) {
	for _, said := range r.node.Status.Conditions {
		condition := findCondition(answer.Status.Conditions, said.Type)
		if condition == nil {
			continue
		}
		var from corev1.ConditionStatus
		if shown != nil {
			if old := findCondition(shown.Status.Conditions, said.Type); old != nil {
				from = old.Status
			}
		}
		if from == condition.Status {
			continue
		}
		klog.FromContext(ctx).V(2).Info("Condition changed", "condition", condition.Type, "from", from, "to", condition.Status, "reason", condition.Reason)
		if hook := r.cfg.Hooks.ConditionChanged; hook != nil {
			hook(ConditionChanged{NodeName: r.name, From: from, Condition: *condition})
		}
		r.conditionEvent(ctx, answer.UID, from, *condition)
	}
}

// conditionEvent records an event about a condition. A condition other than
// Ready that is False from the start is no news.
func (r *work) conditionEvent(ctx context.Context, uid types.UID, from corev1.ConditionStatus, c corev1.NodeCondition) {
	kind, reason := corev1.EventTypeNormal, reasonConditionChanged
	switch {
	case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
		reason = reasonNodeReady
	case c.Type == corev1.NodeReady:
		kind, reason = corev1.EventTypeWarning, reasonNodeNotReady
	case from == "" && c.Status == corev1.ConditionFalse:
		return
	}
	r.event(ctx, r.name, uid, kind, reason, actionUpdate, fmt.Sprintf("Condition %s is now %s, %s: %s", c.Type, c.Status, c.Reason, c.Message))
}

// event records an event about the Node. The API allows notes of 1,024 bytes,
// as many as we allow the message of a condition.
func (c *Controller) event(ctx context.Context, name string, uid types.UID, kind, reason, action, note string) {
	if c.cfg.EventRecorder == nil {
		return
	}
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
	report.Call(ctx, c.cfg.ErrorHandler, "EventRecorder", func() {
		c.cfg.EventRecorder.Eventf(node, nil, kind, reason, action, "%s", cut(note))
	})
}

// reportSpec calls the hook for a changed spec.
func (r *work) reportSpec() {
	st := r.state
	st.mu.Lock()
	changed, view := st.specChanged, st.view
	st.specChanged = false
	st.mu.Unlock()
	if hook := r.cfg.Hooks.SpecChanged; changed && hook != nil {
		if node := view.node(); node != nil {
			hook(SpecChanged{NodeName: r.name, Node: node})
		}
	}
}
