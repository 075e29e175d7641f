// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// fieldManager is the manager of status fields in managedFields.
const fieldManager = "kubewright-podsync"

// startWrite starts the API request that is due for t, if there is a place. It returns
// when to call startWrite again.
func (c *Controller) startWrite(t *podState, now instant, waited bool) (wake instant) {
	s, urgent := t.decideWrite(&c.rules, now)
	if s.op == "" || c.draining && (!t.stopped() || t.api.notFoundAt > 0 || c.apiCtx.Err() != nil) {
		return s.wake
	}
	if !c.mayAct(t) {
		return noDeadline // until the gate opens
	}
	q := queueWrite
	switch {
	case t.write.failures > 0:
		q = queueRetry
	case urgent:
		q = queueUrgent
	}
	if !c.take(t, q, now, waited) {
		return noDeadline // its turn comes
	}
	var u podstatus.Update
	var base *corev1.Pod
	if s.op == OpPatch {
		u, base = t.update(&c.rules), t.base()
	}
	minimal, pinned := t.write.end == endInvalid, t.pinned()
	call := t.writeStarted(now, s.op)
	ctx, cancel := context.WithTimeout(c.apiCtx, callTimeout)
	call.cancel = cancel
	c.running[laneAPI]++
	node := c.nodeOf(t)
	c.calls.Go(func() {
		defer cancel()
		if err := c.askGate(ctx, node); err != nil {
			c.writeGated(t, node, err)
			return
		}
		switch s.op {
		case OpPatch:
			c.patch(ctx, t, call, base, u, minimal, pinned)
		case OpDelete:
			c.delete(ctx, t, call)
		case OpGet:
			pod, err := c.get(ctx, t.ref, node)
			c.finishWrite(t, call, err, func(now instant) {
				if err == nil {
					t.finishGet(&c.rules, now, pod)
				} else {
					t.writeFailed(&c.rules, now, err)
				}
			})
		}
	})
	return noDeadline
}

// writeGated ends a request that the gate did not allow.
func (c *Controller) writeGated(t *podState, node string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.write.inflight = nil
	c.running[laneAPI]--
	if c.apiCtx.Err() == nil {
		c.closeGate(c.apiCtx, node, err)
	}
	c.markDirty(t)
	wake(c.kick)
}

// patch writes the status. If the API has it already, it sends no request.
func (c *Controller) patch(ctx context.Context, t *podState, call *call, base *corev1.Pod, u podstatus.Update, minimal, pinned bool) {
	pod := call.pod
	c.addHostIPs(ctx, pod, &u.Observed)
	next, problems := podstatus.Next(base, u)
	if minimal {
		next = podstatus.Minimal(pod, &next)
	}
	body := podstatus.Patch(pod, &next)
	if pinned && next.Phase != pod.Status.Phase {
		body = pin(body, pod.ResourceVersion)
	}
	body = annotate(body, pod, call.annotations)
	logger := klog.FromContext(ctx)
	if body == nil {
		logger.V(4).Info("Status is stored already", "pod", klog.KObj(pod), "podUID", pod.UID)
		c.mu.Lock()
		c.running[laneAPI]--
		t.statusStored(&c.rules, c.now(), call, nil, true)
		c.reportProblems(t, problems)
		c.markDirty(t)
		c.mu.Unlock()
		wake(c.kick)
		return
	}
	resp, err := c.cfg.Client.Pods(pod.Namespace).Patch(ctx, pod.Name, podstatus.PatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err == nil && resp.UID != pod.UID {
		err = errAnswer
	}
	logger.V(4).Info("Sent status", "pod", klog.KObj(pod), "podUID", pod.UID, "phase", next.Phase, "err", err)
	if err == nil {
		resp.ManagedFields = nil
		same := podstatus.Equal(&resp.Status, &next)
		c.finishWrite(t, call, nil, func(now instant) {
			c.reportProblems(t, problems)
			lag := now - t.write.reportedAt
			fresh := t.write.reportedAt > 0 && t.write.statusSeq == call.want && t.write.storedSeq != call.want
			t.statusStored(&c.rules, now, call, resp, same)
			if fresh {
				t.write.reportedAt = 0
				if hook := c.cfg.Hooks.StatusStored; hook != nil {
					c.later(func() { hook(StatusStored{Ref: t.ref, Lag: lag}) })
				}
			}
		})
		return
	}
	c.finishWrite(t, call, err, func(now instant) {
		switch {
		case isInstanceGone(err, pod.Name):
			t.notFound(now)
		case apierr.Classify(err) == apierr.Conflict:
			t.conflicted(&c.rules, now)
		case isAboutAnnotations(err) && len(call.annotations) > 0:
			t.annotationsRejected(call)
			c.dropped(t.ref, DroppedInvalid, err)
			c.warn(t, reasonInvalidStatus, actionSync, err.Error())
		case isAboutStatus(err):
			t.statusRejected(call)
			c.dropped(t.ref, DroppedInvalid, err)
			c.warn(t, reasonInvalidStatus, actionSync, err.Error())
		default:
			t.writeFailed(&c.rules, now, err)
		}
	})
}

// addHostIPs fills in the addresses that the provider does not report.
func (c *Controller) addHostIPs(ctx context.Context, pod *corev1.Pod, observed *corev1.PodStatus) {
	if c.cfg.HostIPs == nil {
		return
	}
	var ips []string
	err := contain("HostIPs", func() error {
		ips = c.cfg.HostIPs(pod.Spec.NodeName)
		return nil
	})
	if err != nil {
		report.Tell(ctx, c.cfg.ErrorHandler, explain("find the host addresses of", RefOf(pod), err), "Failed to find the addresses of a node",
			panicValues(err, "pod", klog.KObj(pod))...)
	}
	if observed.HostIP == "" && len(observed.HostIPs) == 0 {
		for _, ip := range ips {
			observed.HostIPs = append(observed.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	if pod.Spec.HostNetwork && observed.PodIP == "" && len(observed.PodIPs) == 0 {
		for _, ip := range ips {
			observed.PodIPs = append(observed.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

// pin makes a patch conditional on the version from which it was computed. Changes of
// the phase are pinned: a pod that another client has ended must not become Running
// by a patch that was in flight. If other clients' writes make it fail again and again while
// the phase stays as it is, it is sent without the version: see pinnedTries. Other patches are not, because components that write
// different conditions would conflict.
func pin(body []byte, version string) []byte {
	rest, ok := bytes.CutPrefix(body, []byte(`{"metadata":{`))
	if !ok || version == "" {
		return body
	}
	return slices.Concat([]byte(`{"metadata":{"resourceVersion":`), strconv.AppendQuote(nil, version), []byte(`,`), rest)
}

// annotate adds annotations to a patch. body is nil if the status needs no patch.
func annotate(body []byte, pod *corev1.Pod, annotations map[string]string) []byte {
	if len(annotations) == 0 {
		return body
	}
	if body == nil {
		body = slices.Concat([]byte(`{"metadata":{"uid":`), strconv.AppendQuote(nil, string(pod.UID)), []byte(`}}`))
	}
	encoded, err := json.Marshal(annotations)
	rest, ok := bytes.CutPrefix(body, []byte(`{"metadata":{`))
	if err != nil || !ok {
		return body // can't happen
	}
	return slices.Concat([]byte(`{"metadata":{"annotations":`), encoded, []byte(`,`), rest)
}

// reportProblems reports the invalid fields of a report.
func (c *Controller) reportProblems(t *podState, problems field.ErrorList) {
	if len(problems) == 0 {
		return
	}
	err := problems.ToAggregate()
	why := DroppedInvalid
	for _, problem := range problems {
		if problem.Type == field.ErrorTypeForbidden {
			why = DroppedTransition
		}
	}
	c.dropped(t.ref, why, err)
	c.warn(t, reasonInvalidStatus, actionSync, err.Error())
	if text := err.Error(); t.sched.problems != text {
		t.sched.problems = text
		ctx, ref := c.apiCtx, t.ref
		c.later(func() {
			klog.FromContext(ctx).Info("Left invalid fields of the provider's status out", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID, "problems", text)
		})
	}
}

// isInstanceGone reports whether a PATCH failed because the pod, or the pod of
// this UID, does not exist. The API server calls the latter an attempt to change
// an immutable field.
func isInstanceGone(err error, name string) bool {
	return isPodMissing(err, name) || isInvalidField(err, func(field string) bool { return field == "metadata.uid" })
}

// isInvalidField reports whether the API server calls a wanted field invalid.
func isInvalidField(err error, wanted func(field string) bool) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && apierrors.IsInvalid(err) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return wanted(c.Field) })
}

// isAboutStatus reports whether a PATCH failed because the status itself is invalid or too
// large. An admission policy or a webhook answers 422 or 400 too, and a proxy 400: what they
// refuse now they may accept later.
func isAboutStatus(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) ||
		isInvalidField(err, func(field string) bool { return strings.HasPrefix(field, "status") })
}

// isAboutAnnotations reports whether a PATCH failed because its annotations are invalid or
// too large.
func isAboutAnnotations(err error) bool {
	return isInvalidField(err, func(field string) bool { return strings.HasPrefix(field, "metadata.annotations") })
}

// errAnswer is the error of an answer that can be decoded but lacks required fields,
// such as an empty object from a proxy.
var errAnswer = errors.New("podsync: the API server's answer is not about the pod")

// isPodMissing reports whether a 404 is about this pod. A proxy's is not, and a missing
// pod is stopped.
func isPodMissing(err error, name string) bool { return apierr.IsMissing(err, "pods", name) }

// delete sends the DELETE of the pod.
func (c *Controller) delete(ctx context.Context, t *podState, call *call) {
	err := c.cfg.Client.Pods(t.ref.Namespace).Delete(ctx, t.ref.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      &metav1.Preconditions{UID: &t.ref.UID},
	})
	klog.FromContext(ctx).V(4).Info("Sent deletion of pod", "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID, "err", err)
	gone := isPodMissing(err, t.ref.Name) || apierrors.IsConflict(err)
	if gone {
		err = nil // the pod, or the pod of this UID, is gone already
	}
	c.finishWrite(t, call, err, func(now instant) {
		if err != nil {
			t.writeFailed(&c.rules, now, err)
			return
		}
		t.deleteSent(now)
		if gone {
			t.notFound(now)
		}
	})
}

// get reads the pod from the API, not from a cache. The result is nil if the pod of
// this UID does not exist.
//
// The credentials of a node may read only the node's pods. The answer about any
// other pod, whether it exists or not, is 403. They may list the pods of the
// node, and a pod never changes its node: if node is the pod's node, a LIST
// without the pod says that it is gone. If node is "", the error is
// errUnconfirmed.
func (c *Controller) get(ctx context.Context, ref Ref, node string) (*corev1.Pod, error) {
	pods := c.cfg.Client.Pods(ref.Namespace)
	pod, err := pods.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		if node == "" {
			return nil, errUnconfirmed
		}
		list, listErr := pods.List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
			"metadata.name": ref.Name, "spec.nodeName": node,
		}.String()})
		switch {
		case listErr != nil:
			return nil, listErr
		case list.ResourceVersion == "":
			return nil, errAnswer
		case len(list.Items) == 0:
			return nil, nil
		}
		pod, err = &list.Items[0], nil
	}
	if isPodMissing(err, ref.Name) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch pod.UID {
	case ref.UID:
	case "":
		return nil, errAnswer
	default:
		return nil, nil
	}
	pod.ManagedFields = nil
	return pod, nil
}

// finishWrite applies the result of a request.
func (c *Controller) finishWrite(t *podState, call *call, err error, apply func(now instant)) {
	c.mu.Lock()
	now := c.now()
	c.running[laneAPI]--
	if c.breaker.done(now, err) {
		c.retryWrites("")
	} else if err == nil && call.op != OpGet && t.write.failures > 0 {
		c.retryWrites(t.ref.Namespace) // a webhook may work again
	}
	if call.fate == fateStale {
		t.write.inflight = nil // the informer shows its effect
	} else {
		apply(now)
		if t.api.presence == presenceMissing {
			wake(c.verify)
		}
	}
	c.markDirty(t)
	c.mu.Unlock()
	wake(c.kick)

	ctx := c.apiCtx
	switch {
	case err == nil:
		c.apiErrors.OK(ctx, &t.sched.apiErrs, "Writing to pods works again")
	case ctx.Err() == nil && !isInstanceGone(err, t.ref.Name) && apierr.Classify(err) != apierr.Canceled:
		c.apiErrors.Fail(ctx, c.cfg.ErrorHandler, &t.sched.apiErrs, explain(call.op, t.ref, err), "Failed to write to a pod",
			"op", call.op, "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID)
	}
	if hook := c.cfg.Hooks.APICall; hook != nil {
		hook(APICall{Op: call.op, Ref: t.ref, Latency: now - call.since, Err: err})
	}
}

// retryWrites ends the backoff of every pod of the namespace, or of all if it is
// empty: at most once each second, because each pod that recovers asks for it.
func (c *Controller) retryWrites(namespace string) {
	now := c.now()
	if at, ok := c.retried[namespace]; ok && now-at < retryMin {
		return
	}
	for other, at := range c.retried {
		if now-at >= retryMin {
			delete(c.retried, other)
		}
	}
	c.retried[namespace] = now
	for _, t := range c.tracks {
		if t.write.failures > 0 && (namespace == "" || t.ref.Namespace == namespace) {
			t.write.retryAt = 0
			c.markDirty(t)
		}
	}
}
