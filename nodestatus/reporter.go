// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
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

// An activity may fail for many nodes at once, which is reported once.
type activity int

const (
	calling activity = iota
	setting
	leavingOut
	tainting
	asking
	activities
)

// works is what the log says at the end of the failures of an activity.
var works = [activities]string{
	"Writing nodes works again", "All setters and health checks work again", "No setter sets anything that the API server refuses",
	"Adding taints to nodes works again", "Gates of nodes answer again",
}

// reporter tells the program, the log and the cluster about nodes.
type reporter struct {
	cfg    *Config
	ready  *lifecycle.Ready
	seed   maphash.Seed
	noPods atomic.Bool // was said
	groups [activities]apierr.Group
}

// ok reports that an activity has succeeded.
func (r *reporter) ok(ctx context.Context, n *node, a activity) {
	r.groups[a].OK(ctx, &n.members[a], works[a])
}

// fail reports that an activity has failed.
func (r *reporter) fail(ctx context.Context, n *node, a activity, err error, msg string, keysAndValues ...any) {
	r.groups[a].Fail(ctx, r.cfg.ErrorHandler, &n.members[a], err, msg, keysAndValues...)
}

// leave takes a node out of the reports, because it must not hold up those about the
// others: with Leave while it is left alone, and with Retire when it is no longer managed.
func (r *reporter) leave(n *node, leave func(*apierr.Group, *apierr.Member)) {
	for a := range r.groups {
		leave(&r.groups[a], &n.members[a])
	}
}

// news reports what follows from an event.
func (r *reporter) news(ctx context.Context, n *node, news status.News) {
	logger, hooks := klog.FromContext(ctx), &r.cfg.Hooks
	if news.Deleted != "" {
		logger.Info("Node was deleted by another client", "uid", news.Deleted, "onDeleted", r.cfg.OnDeleted)
		if hooks.Deleted != nil {
			hooks.Deleted(Deleted{NodeName: n.name, UID: news.Deleted, Policy: r.cfg.OnDeleted})
		}
	}
	if news.Replaced != "" {
		uid := news.Registered.UID
		logger.Info("Node was replaced by another object of the same name", "oldUID", news.Replaced, "newUID", uid)
		if hooks.Replaced != nil {
			hooks.Replaced(Replaced{NodeName: n.name, OldUID: news.Replaced, NewUID: uid})
		}
		r.event(ctx, n.name, uid, corev1.EventTypeWarning, reasonReplaced, actionRegister, fmt.Sprintf("The Node was replaced by another object: its UID was %s", news.Replaced))
	}
	if news.Recovered > 0 && hooks.Recovered != nil {
		hooks.Recovered(Recovered{NodeName: n.name, Outage: news.Recovered})
	}
	if node := news.Registered; node != nil {
		r.ready.Mark()
		logger.V(2).Info("Registered node", "uid", node.UID, "created", news.Created)
		if lease := r.cfg.Lease; lease != nil {
			report.Call(ctx, r.cfg.ErrorHandler, "Lease.Trigger", func() { lease.Trigger(n.name) })
		}
		if hooks.Registered != nil {
			hooks.Registered(Registered{NodeName: n.name, Node: node.DeepCopy(), Created: news.Created})
		}
		r.event(ctx, n.name, node.UID, corev1.EventTypeNormal, reasonRegistered, actionRegister, "Registered Node "+n.name)
	}
	r.conditions(ctx, n, news.Conditions)
	if before, after := news.Reboot[0], news.Reboot[1]; before != "" {
		logger.V(2).Info("Machine was rebooted", "oldBootID", before, "newBootID", after)
		if hooks.Rebooted != nil {
			hooks.Rebooted(Rebooted{NodeName: n.name, OldBootID: before, NewBootID: after})
		}
		r.event(ctx, n.name, n.uid(), corev1.EventTypeWarning, reasonRebooted, actionUpdate, "The machine was rebooted, boot ID: "+after)
	}
	if news.NoPods && !r.noPods.Swap(true) {
		logger.Info("Node has no allocatable pods, so the scheduler answers \"Too many pods\" for every pod: set the resource pods, with the setter Capacity or in Config.Template")
	}
	if news.Spec != nil && hooks.SpecChanged != nil {
		hooks.SpecChanged(SpecChanged{NodeName: n.name, Node: news.Spec})
	}
}

// conditions reports which of our conditions have changed. It is called when the API
// server has accepted them, so each report is true, and is made once.
func (r *reporter) conditions(ctx context.Context, n *node, changes []status.ConditionChange) {
	for _, change := range changes {
		c := change.Condition
		klog.FromContext(ctx).V(2).Info("Condition changed", "condition", c.Type, "from", change.From, "to", c.Status, "reason", c.Reason)
		if hook := r.cfg.Hooks.ConditionChanged; hook != nil {
			hook(ConditionChanged{NodeName: n.name, From: change.From, Condition: c})
		}
		kind, reason := corev1.EventTypeNormal, reasonConditionChanged
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			reason = reasonNodeReady
		case c.Type == corev1.NodeReady:
			kind, reason = corev1.EventTypeWarning, reasonNodeNotReady
		case change.From == "" && c.Status == corev1.ConditionFalse:
			continue // a condition other than Ready that is False from the start is no news
		}
		r.event(ctx, n.name, n.uid(), kind, reason, actionUpdate, fmt.Sprintf("Condition %s is now %s, %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
}

// event records an event about the Node.
func (r *reporter) event(ctx context.Context, name string, uid types.UID, kind, reason, action, note string) {
	if r.cfg.EventRecorder == nil {
		return
	}
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
	report.Call(ctx, r.cfg.ErrorHandler, "EventRecorder", func() {
		r.cfg.EventRecorder.Eventf(node, nil, kind, reason, action, "%s", report.Note(note))
	})
}

// written tells the hook about an accepted patch of the status.
func (r *reporter) written(n *node, cause Cause, patch []byte, latency time.Duration) {
	if hook := r.cfg.Hooks.Written; hook != nil {
		hook(Written{NodeName: n.name, Cause: cause, Bytes: len(patch), Latency: latency})
	}
}

// failed tells the hook about a failed request.
func (r *reporter) failed(n *node, verb string, err error, latency time.Duration) {
	if hook := r.cfg.Hooks.Failed; hook != nil {
		hook(Failed{NodeName: n.name, Verb: verb, Class: apierr.Classify(err).String(), Err: err, Latency: latency})
	}
}

// functions reports the setters and checks that failed in a round: to hooks each of
// them, and to the error handler once per run of them. A node that is starting has
// checks that fail for a moment, which is no failure unless it lasts.
func (r *reporter) functions(ctx context.Context, n *node, failures []failure, starting bool) {
	if len(failures) == 0 {
		r.ok(ctx, n, setting)
		return
	}
	var fields []string
	errs := make([]error, len(failures))
	for i, f := range failures {
		errs[i] = fmt.Errorf("%s: %w", f.Field, f.err)
		fields = append(fields, f.Field)
		_, panicked := errors.AsType[*callback.PanicError](f.err)
		starting = starting && f.Check && !panicked
		if hook := r.cfg.Hooks.SetterFailed; hook != nil {
			hook(SetterFailed{NodeName: n.name, Field: f.Field, Late: f.Late, Err: f.err})
		}
	}
	err := fmt.Errorf("nodestatus: node %q: %w", n.name, errors.Join(errs...))
	msg := "Health check of node failed"
	if !failures[0].Check { // setters come first
		msg = "Failed to determine the status of node"
	}
	if starting {
		klog.FromContext(ctx).V(4).Info(msg, "err", err)
		return
	}
	r.fail(ctx, n, setting, err, msg, "failed", strings.Join(fields, ","))
}

// leftOut reports, once, the parts left out of the status because the API server would
// refuse the whole of it.
func (r *reporter) leftOut(ctx context.Context, n *node, problems []string) {
	if len(problems) == 0 {
		n.leftOut = 0
		r.ok(ctx, n, leavingOut)
		return
	}
	text := strings.Join(problems, "; ")
	err := fmt.Errorf("nodestatus: node %q: left out of the status: %s", n.name, text)
	r.fail(ctx, n, leavingOut, err, "A setter has set what the API server refuses")
	if hash := maphash.String(r.seed, text); n.leftOut != hash {
		n.leftOut = hash
		r.event(ctx, n.name, n.uid(), corev1.EventTypeWarning, reasonInvalid, actionUpdate, "Left out of the status: "+text)
	}
}
