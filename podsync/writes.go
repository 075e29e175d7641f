// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/internal/queue"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// fieldManager is the manager of status fields in managedFields.
const fieldManager = core.FieldManager

// writeQueues is the number of queues that the writer has: queueUrgent, queueWrite and
// queueRetry.
const writeQueues = queueCount - queueUrgent

// breakerCap is the longest time between two requests of a tripped breaker. It
// bounds how long the end of an outage goes unnoticed.
const breakerCap = core.UnansweredCap

// A writer sends the requests of pods to the API, a bounded number of them at once. The lock
// of the table guards queues, running, breaker and retried.
type writer struct {
	pods     *table
	gates    *gates
	observer *observer
	client   corev1client.PodsGetter
	hostIPs  func(nodeName string) []string // nil: none
	handler  report.Handler

	errors  apierr.Group
	queues  [writeQueues]queue.Fifo[*entry] // queueUrgent is the first one
	running int
	breaker queue.Breaker
	retried map[string]instant // by namespace, the last call of retry
}

// free reports whether a request may start, and else when to ask again.
func (w *writer) free(now instant) (ok bool, again instant) {
	if w.running >= w.breaker.Trip {
		return false, core.Never
	}
	return w.breaker.Allows(now, w.running)
}

// take reports whether t may start in a queue now; otherwise it waits.
// Pods that have waited go first.
func (w *writer) take(t *entry, q int, now instant, waited bool) bool {
	if ok, _ := w.free(now); ok && (waited || w.queues[q-queueUrgent].Len() == 0) {
		return true
	}
	if !t.queued[q] {
		t.queued[q] = true
		w.queues[q-queueUrgent].Push(t)
	}
	return false
}

// startQueued starts the requests that wait for a place, while there are places. It calls
// started for each pod, and returns when to call startQueued again.
func (w *writer) startQueued(at core.Moment, started func(*entry)) (again instant) {
	again = core.Never
	for i := range w.queues {
		for q := &w.queues[i]; q.Len() > 0; {
			ok, wake := w.free(at.Since)
			if !ok {
				again = min(again, wake)
				break
			}
			t := q.Pop()
			t.queued[queueUrgent+i] = false
			w.start(t, at, true)
			started(t)
		}
	}
	return again
}

// start starts the API request that is due for t, if there is a place. It returns
// when to call start again.
func (w *writer) start(t *entry, at core.Moment, waited bool) (wake instant) {
	s := t.Next(at.Since, core.Writes, true)
	if s.Op == "" || w.pods.draining && (!t.Unfinished() || w.pods.run.apiCtx.Err() != nil) {
		return s.Wake
	}
	if !w.gates.mayAct(t) {
		return core.Never // until the gate opens
	}
	q := queueWrite
	if failures, _ := t.Failures(core.Writes); failures > 0 {
		q = queueRetry
	} else if s.Urgent {
		q = queueUrgent
	}
	if !w.take(t, q, at.Since, waited) {
		return core.Never // its turn comes
	}
	call := w.pods.apply(t, at, core.Sent{Action: s}).Call
	ctx, cancel := context.WithTimeout(w.pods.run.apiCtx, callTimeout)
	t.cancelWrite = cancel
	w.running++
	node := w.gates.nodeOf(t)
	w.pods.run.calls.Go(func() {
		defer cancel()
		w.send(ctx, t, call, node)
	})
	return core.Never
}

// send sends a request if the gate lets it.
func (w *writer) send(ctx context.Context, t *entry, call *core.Call, node string) {
	if err := w.gates.ask(w.pods.run.apiCtx, node); err != nil {
		w.end(t, func(at core.Moment) {
			w.pods.apply(t, at, core.NotMade{Lane: core.Writes})
			if w.pods.run.apiCtx.Err() == nil {
				w.gates.close(w.pods.run.apiCtx, node, err)
			}
		})
		return
	}
	switch call.Op {
	case core.Patch:
		w.patch(ctx, t, call)
	case core.Delete:
		w.delete(ctx, t, call)
	case core.Get:
		pod, err := getPod(ctx, w.client, t.ref, node)
		if err != nil {
			w.finish(t, call, err, failureOf(err))
		} else {
			w.finish(t, call, nil, core.Read{Pod: pod})
		}
	}
}

// end gives back the place of a request, and records its result.
func (w *writer) end(t *entry, apply func(at core.Moment)) {
	w.pods.mu.Lock()
	defer w.pods.mu.Unlock()
	w.running--
	t.cancelWrite = nil // the context would be kept with it
	apply(w.pods.moment())
	w.pods.markDirty(t)
	wake(w.pods.kick)
}

// patch writes the status. If the API has it already, it sends no request.
func (w *writer) patch(ctx context.Context, t *entry, call *core.Call) {
	pod := call.Pod
	update := call.Update
	w.addHostIPs(ctx, pod, &update.Observed)
	next, problems := podstatus.Next(call.Base, update)
	if call.Minimal {
		next = podstatus.Minimal(pod, &next)
	}
	body := podstatus.Patch(pod, &next)
	if call.Pinned && next.Phase != pod.Status.Phase {
		body = pin(body, pod.ResourceVersion)
	}
	body = annotate(body, pod, call.Annotations)
	logger := klog.FromContext(ctx)
	if body == nil {
		logger.V(4).Info("Status is stored already", "pod", klog.KObj(pod), "podUID", pod.UID)
		w.end(t, func(at core.Moment) {
			w.pods.apply(t, at, core.Stored{})
			w.reportProblems(t, problems)
		})
		return
	}
	resp, err := w.client.Pods(pod.Namespace).Patch(ctx, pod.Name, podstatus.PatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err == nil && resp.UID != pod.UID {
		err = errAnswer
	}
	logger.V(4).Info("Sent status", "pod", klog.KObj(pod), "podUID", pod.UID, "phase", next.Phase, "err", err)
	if err == nil {
		resp.ManagedFields = nil
		w.finish(t, call, nil, core.Stored{Pod: resp, Same: podstatus.Equal(&resp.Status, &next)}, problems...)
		return
	}
	switch {
	case isInstanceGone(err, pod.Name):
		w.finish(t, call, err, core.NotFound{})
	case apierr.Classify(err) == apierr.Conflict:
		w.finish(t, call, err, core.Conflicted{})
	case isAboutAnnotations(err) && len(call.Annotations) > 0:
		w.finish(t, call, err, core.AnnotationsRefused{})
	case isAboutStatus(err):
		w.finish(t, call, err, core.StatusRefused{})
	default:
		w.finish(t, call, err, failureOf(err))
	}
}

// addHostIPs fills in the addresses that the provider does not report.
func (w *writer) addHostIPs(ctx context.Context, pod *corev1.Pod, observed *corev1.PodStatus) {
	if w.hostIPs == nil {
		return
	}
	var ips []string
	err := contain("HostIPs", func() error {
		ips = w.hostIPs(pod.Spec.NodeName)
		return nil
	})
	if err != nil {
		report.Tell(ctx, w.handler, explain("find the host addresses of", RefOf(pod), err), "Failed to find the addresses of a node",
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

// reportProblems reports the invalid fields of a report.
func (w *writer) reportProblems(t *entry, problems field.ErrorList) {
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
	w.observer.dropped(t.ref, why, err)
	w.observer.warn(t, reasonInvalidStatus, actionSync, err.Error())
	if text := err.Error(); t.problems != text {
		t.problems = text
		ctx, ref := w.pods.run.apiCtx, t.ref
		w.pods.later(func() {
			klog.FromContext(ctx).Info("Left invalid fields of the provider's status out", "pod", klog.KRef(ref.Namespace, ref.Name), "podUID", ref.UID, "problems", text)
		})
	}
}

// delete sends the DELETE of the pod.
func (w *writer) delete(ctx context.Context, t *entry, call *core.Call) {
	err := w.client.Pods(t.ref.Namespace).Delete(ctx, t.ref.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      &metav1.Preconditions{UID: &t.ref.UID},
	})
	klog.FromContext(ctx).V(4).Info("Sent deletion of pod", "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID, "err", err)
	switch {
	case err == nil:
		w.finish(t, call, nil, core.DeleteSent{})
	case isPodMissing(err, t.ref.Name) || apierrors.IsConflict(err):
		w.finish(t, call, nil, core.DeleteSent{NotFound: true}) // the pod, or the pod of this UID, is gone already
	default:
		w.finish(t, call, err, failureOf(err))
	}
}

// finish applies the result of a request.
func (w *writer) finish(t *entry, call *core.Call, err error, result core.Event, problems ...*field.Error) {
	var latency time.Duration
	w.end(t, func(at core.Moment) {
		latency = at.Since - call.Since
		if failures, _ := t.Failures(core.Writes); w.serverAnswered(at.Since, err) {
			w.retry(at, "")
		} else if err == nil && call.Op != core.Get && failures > 0 {
			w.retry(at, t.ref.Namespace) // a webhook may work again
		}
		counts := t.Counts(call)
		if read, ok := result.(core.Read); ok {
			read.Seq = w.pods.tick()
			result = read
		}
		news := w.pods.apply(t, at, result)
		if !counts {
			return
		}
		w.reportProblems(t, problems)
		switch result.(type) {
		case core.AnnotationsRefused, core.StatusRefused:
			w.observer.dropped(t.ref, DroppedInvalid, err)
			w.observer.warn(t, reasonInvalidStatus, actionSync, err.Error())
		}
		if news.Fresh {
			w.observer.stored(t.ref, news.Lag)
		}
		if t.Missing() {
			wake(w.pods.verify)
		}
	})
	ctx := w.pods.run.apiCtx
	switch {
	case err == nil:
		w.errors.OK(ctx, &t.apiErrs, "Writing to pods works again")
	case ctx.Err() == nil && !isInstanceGone(err, t.ref.Name) && apierr.Classify(err) != apierr.Canceled:
		w.errors.Fail(ctx, w.handler, &t.apiErrs, explain(Op(call.Op), t.ref, err), "Failed to write to a pod",
			"op", Op(call.Op), "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID)
	}
	w.observer.requested(Op(call.Op), t.ref, latency, err)
}

// serverAnswered tells the breaker of the result of a request. It reports whether the server
// is back.
func (w *writer) serverAnswered(now instant, err error) (back bool) {
	if apierrors.IsInternalError(err) {
		return false // often an admission webhook, which fails for some objects only
	}
	switch apierr.Classify(err) {
	case apierr.Timeout, apierr.Unreachable, apierr.Server, apierr.Throttled, apierr.Unauthorized, apierr.Other:
		w.breaker.Failed(now)
		return false
	case apierr.Canceled:
		return false
	}
	return w.breaker.Succeeded()
}

// retry ends the backoff of every pod of the namespace, or of all if it is
// empty: at most once each second, because each pod that recovers asks for it.
func (w *writer) retry(at core.Moment, namespace string) {
	now := at.Since
	if last, ok := w.retried[namespace]; ok && now-last < retryMin {
		return
	}
	for other, last := range w.retried {
		if now-last >= retryMin {
			delete(w.retried, other)
		}
	}
	w.retried[namespace] = now
	w.pods.retry(core.Writes, at, func(t *entry) bool { return namespace == "" || t.ref.Namespace == namespace })
}
