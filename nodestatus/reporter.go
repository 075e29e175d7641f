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

// reporter tells the program, the log and the cluster about nodes.
type reporter struct {
	cfg    *Config
	ready  *lifecycle.Ready
	seed   maphash.Seed
	noPods atomic.Bool // was said

	// The failures of many nodes at once are reported once.
	calling, setting, leavingOut, tainting report.Group
}

// leave takes a node that is left alone out of the reports: it no longer tries, and
// must not hold up the reports about the others. A node that is no longer managed
// leaves for good.
func (r *reporter) leave(n *node, g *gateAsker, forGood bool) {
	m := &n.members
	for _, in := range []struct {
		group  *report.Group
		member *report.Member
	}{{&r.calling, &m.calling}, {&r.setting, &m.setting}, {&r.leavingOut, &m.leavingOut}, {&r.tainting, &m.tainting}, {&g.asking, &m.asking}} {
		if forGood {
			in.group.Retire(in.member)
		} else {
			in.group.Leave(in.member)
		}
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

// event records an event about the Node. The API allows notes of 1,024 bytes, as many
// as we allow the message of a condition.
func (r *reporter) event(ctx context.Context, name string, uid types.UID, kind, reason, action, note string) {
	if r.cfg.EventRecorder == nil {
		return
	}
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
	report.Call(ctx, r.cfg.ErrorHandler, "EventRecorder", func() {
		r.cfg.EventRecorder.Eventf(node, nil, kind, reason, action, "%s", status.Cut(note))
	})
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
		r.setting.OK(ctx, &n.members.setting, "All setters and health checks work again")
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
	r.setting.Fail(ctx, r.cfg.ErrorHandler, &n.members.setting, err, msg, "failed", strings.Join(fields, ","))
}

// leftOut reports, once, the parts left out of the status because the API server would
// refuse the whole of it.
func (r *reporter) leftOut(ctx context.Context, n *node, problems []string) {
	if len(problems) == 0 {
		n.leftOut = 0
		r.leavingOut.OK(ctx, &n.members.leavingOut, "No setter sets anything that the API server refuses")
		return
	}
	text := strings.Join(problems, "; ")
	err := fmt.Errorf("nodestatus: node %q: left out of the status: %s", n.name, text)
	r.leavingOut.Fail(ctx, r.cfg.ErrorHandler, &n.members.leavingOut, err, "A setter has set what the API server refuses")
	if hash := maphash.String(r.seed, text); n.leftOut != hash {
		n.leftOut = hash
		r.event(ctx, n.name, n.uid(), corev1.EventTypeWarning, reasonInvalid, actionUpdate, "Left out of the status: "+text)
	}
}
