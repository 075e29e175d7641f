// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// The reasons and the actions of events.
const (
	reasonBecameLeader   = "BecameLeader"
	reasonStoppedLeading = "StoppedLeading"
	reasonLeaderLost     = "LeadershipLost"

	actionLead = "Lead"
)

// tell says what has happened: to the log, the hooks and the recorder of
// events.
func (l *loop) tell(effect any) {
	log, hooks := klog.FromContext(l.ctx), &l.cfg.Hooks
	switch e := effect.(type) {
	case TermStarted:
		log.V(2).Info("Became leader", "token", e.Token, "transitions", e.Transitions, "vacant", e.Vacant)
		l.event(corev1.EventTypeNormal, reasonBecameLeader, "%s leads", l.identity)
		call(hooks.TermStarted, e)
	case cancelWork:
		l.tellEnd(e.cause)
	case TermEnded:
		log.V(2).Info("Stopped leading", "token", e.Token, "cause", fmt.Sprint(e.Cause), "duration", e.Duration, "drained", e.Drained)
		if lost(e.Cause) && e.Drained > l.cfg.Timing.Drain {
			log.Info("The work returned later than Timing.Drain after its context was cancelled: two may have led", "drained", e.Drained, "drain", l.cfg.Timing.Drain)
		}
		if !lost(e.Cause) {
			l.event(corev1.EventTypeNormal, reasonStoppedLeading, "%s does not lead any more", l.identity)
		}
		call(hooks.TermEnded, e)
	case LeaderChanged:
		log.V(2).Info("Saw another leader", "from", e.From, "to", e.To)
		call(hooks.LeaderChanged, e)
	case Offered:
		log.V(2).Info("Offered the lease to a better candidate", "to", e.To)
		call(hooks.Offered, e)
	case OfferEnded:
		log.V(2).Info("The offer of the lease has ended", "to", e.To, "accepted", e.Accepted, "elapsed", e.Elapsed)
		call(hooks.OfferEnded, e)
	case mixedRegistries:
		l.complain(ErrMixedRegistries, "Other candidates for the lease use another registry")
	}
}

func call[T any](hook func(T), arg T) {
	if hook != nil {
		hook(arg)
	}
}

func lost(cause error) bool { return errors.Is(cause, ErrLost) || errors.Is(cause, ErrExpired) }

// tellEnd says why the context of the work was cancelled.
func (l *loop) tellEnd(cause error) {
	log := klog.FromContext(l.ctx)
	if !lost(cause) {
		log.V(2).Info("Told the work to stop", "cause", cause.Error())
		return
	}
	holder := holderOf(l.machine.lease)
	log.Info("Lost the lease", "cause", cause.Error(), "holder", holder)
	l.event(corev1.EventTypeWarning, reasonLeaderLost, "%s has lost the lease: %v", l.identity, cause)
}

// complain hands an error to the ErrorHandler, or to the log.
func (l *loop) complain(err error, msg string) { report.Tell(l.ctx, l.cfg.ErrorHandler, err, msg) }

// workFailed says that the work returned an error after its context was
// cancelled, unless that says no more than that.
func (l *loop) workFailed(err, cause error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || cause != nil && errors.Is(err, cause) {
		return
	}
	l.complain(fmt.Errorf("election: lead: %w", err), "The work of the leader ended with an error")
}

// report says what came of a request.
func (l *loop) report(a answer, now instant) {
	log := klog.FromContext(l.ctx)
	class := apierr.Classify(a.err)
	switch class {
	case apierr.None, apierr.Conflict, apierr.AlreadyExists, apierr.NotFound, apierr.Canceled:
		log.V(4).Info("Sent request", "op", a.op, "latency", now.mono-a.sent.mono, "outcome", class)
	}
	switch {
	case class == apierr.None:
		l.trouble.OK(l.ctx, "Requests about the lease succeed again")
		if a.op == OpRenew {
			call(l.cfg.Hooks.Renewed, Renewed{Latency: now.mono - a.sent.mono})
		}
	case class == apierr.Conflict, class == apierr.AlreadyExists, class == apierr.Canceled && l.aborted:
	case class == apierr.NotFound && !missingNamespace(a.err):
	default:
		l.fail(a.op, a.err)
	}
}

// reportWatch says what came of a watch.
func (l *loop) reportWatch(s sight[*coordinationv1.Lease]) {
	if s.err != nil && !s.gone {
		l.fail(OpWatch, s.err)
	}
}

func (l *loop) fail(op Op, err error) {
	l.trouble.Fail(l.ctx, l.cfg.ErrorHandler, fmt.Errorf("election: %s: %w", op, err), "Request about the lease failed", "op", op)
	call(l.cfg.Hooks.Failed, Failed{Op: op, Class: apierr.Classify(err).String(), Err: err})
}

// event records an event about the Lease.
func (l *loop) event(eventType, reason, note string, args ...any) {
	if l.cfg.EventRecorder == nil || l.machine.lease == nil {
		return
	}
	regarding := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: l.cfg.Lease.Namespace, Name: l.cfg.Lease.Name, UID: l.machine.lease.UID},
	}
	l.cfg.EventRecorder.Eventf(regarding, nil, eventType, reason, actionLead, note, args...)
}
