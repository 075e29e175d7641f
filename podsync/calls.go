// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
	"github.com/kubewright/kubewright/podsync/internal/queue"
)

// callQueues is the number of queues that the caller has: queueAdmit, queueStart and queueStop.
const callQueues = queueUrgent

// A caller calls the provider for pods, a bounded number of them at once. The lock of the
// table guards queues and running.
type caller struct {
	pods     *table
	gates    *gates
	observer *observer
	records  *records
	provider Provider
	caps     capabilities
	prints   *fingerprints
	handler  report.Handler
	limit    int // concurrent calls of a queue; one is for queueAdmit

	errors  apierr.Group
	queues  [callQueues]queue.Fifo[*entry]
	running [callQueues]int
}

// queueOf returns the queue of a call.
func queueOf(op core.Op) int {
	switch op {
	case core.Admit:
		return queueAdmit
	case core.Stop, core.Release:
		return queueStop
	}
	return queueStart
}

// free reports whether a queue has a place.
func (c *caller) free(q int) bool {
	if q == queueAdmit {
		return c.running[q] == 0
	}
	return c.running[q] < c.limit
}

// take reports whether t may start in a queue now; otherwise it waits.
// Pods that have waited go first.
func (c *caller) take(t *entry, q int, waited bool) bool {
	if c.free(q) && (waited || c.queues[q].Len() == 0) {
		return true
	}
	if !t.queued[q] {
		t.queued[q] = true
		c.queues[q].Push(t)
	}
	return false
}

// startQueued starts the calls that wait for a place, while there are places. It calls
// started for each pod.
func (c *caller) startQueued(at core.Moment, started func(*entry)) {
	for q := range c.queues {
		for c.queues[q].Len() > 0 && c.free(q) {
			t := c.queues[q].Pop()
			t.queued[q] = false
			c.start(t, at, true)
			started(t)
		}
	}
}

// idle reports whether no call is in flight.
func (c *caller) idle() bool { return c.running == [callQueues]int{} }

// start starts the call that is due for t, if there is a place. It returns
// when to call start again.
func (c *caller) start(t *entry, at core.Moment, waited bool) (wake instant) {
	s := t.Next(at.Since, core.Calls, c.pods.nameFree(t))
	if s.Cancel {
		c.pods.apply(t, at, core.Canceled{})
		c.pods.abort(t, core.Calls)
	}
	if s.Op == "" || c.pods.draining && (!isRecord(s.Op) || !t.Unrecorded() || c.pods.run.apiCtx.Err() != nil) {
		return s.Wake
	}
	if !c.gates.mayAct(t) || c.records.removing[t.ref.UID] {
		return core.Never // until the gate opens, or the record is removed
	}
	q := queueOf(s.Op)
	if !c.take(t, q, waited) {
		return s.Wake // its turn comes
	}
	news := c.pods.apply(t, at, core.Called{Seq: c.pods.tick(), Action: s})
	ctx, cancel := context.WithCancel(c.contextOf(s.Op))
	t.cancelCall = cancel
	if news.FirstStop {
		c.observer.kills(t)
	}
	c.running[q]++
	node := c.gates.nodeOf(t)
	c.pods.run.calls.Go(func() {
		defer cancel()
		c.make(ctx, t, news.Call, node)
	})
	return t.Next(at.Since, core.Calls, c.pods.nameFree(t)).Wake // when it is in the way of Stop
}

// isRecord reports whether a call is one of the Checkpoint.
func isRecord(op core.Op) bool { return op == core.Save || op == core.Remove }

// contextOf returns the context of the calls of op. Records are written for as long as final
// statuses are, also when Run is returning.
func (c *caller) contextOf(op core.Op) context.Context {
	if isRecord(op) {
		return c.pods.run.apiCtx
	}
	return c.pods.run.callCtx
}

// make makes a call if the gate lets it.
func (c *caller) make(ctx context.Context, t *entry, call *core.Call, node string) {
	base := c.contextOf(call.Op)
	err := c.gates.ask(base, node)
	if err != nil || !c.counts(t, call) {
		c.end(t, call, func() {
			c.pods.apply(t, c.pods.moment(), core.NotMade{Lane: core.Calls})
			if err != nil && base.Err() == nil {
				c.gates.close(base, node, err)
			}
		})
		return
	}
	st, saved, err := c.call(ctx, t.ref, call)
	c.finish(t, call, st, saved, err)
}

// counts reports whether the gate has been open since the call was planned.
func (c *caller) counts(t *entry, call *core.Call) bool {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	return t.Counts(call)
}

// end gives back the place of a call, and records its result.
func (c *caller) end(t *entry, call *core.Call, apply func()) {
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	c.running[queueOf(call.Op)]--
	t.cancelCall = nil // the context would be kept with it
	apply()
	c.pods.markDirty(t)
	wake(c.pods.kick)
}

// call makes one provider call. Its result shares no memory with the provider. saved says
// that the Checkpoint has the pod or, with an error, may have it.
func (c *caller) call(ctx context.Context, ref Ref, call *core.Call) (st State, saved bool, err error) {
	var pod *corev1.Pod
	if call.Pod != nil && call.Op != core.Inspect && call.Op != core.Release {
		pod = call.Pod.DeepCopy()
	}
	err = contain(string(call.Op), func() (err error) {
		switch call.Op {
		case core.Admit:
			err = c.caps.admitter.Admit(ctx, pod, c.active)
		case core.Annotate:
			st.Annotations, err = c.caps.annotator.Annotate(ctx, pod)
		case core.Start:
			st, err = c.provider.Start(ctx, pod)
			if err == nil && !st.Stopped && c.records.checkpoint != nil {
				saved = true
				err = c.records.save(ctx, call.Pod, 0, nil)
			}
		case core.Update:
			st, err = c.caps.updater.Update(ctx, pod)
		case core.Save:
			err = c.records.save(ctx, call.Pod, call.LostSince, call.End)
		case core.Remove:
			err = c.records.remove(ctx, ref.UID)
		case core.Stop:
			st, err = c.provider.Stop(ctx, ref, StopOptions{Grace: call.Grace, Reason: StopReason(call.Reason), Pod: pod})
		case core.Inspect:
			st, err = c.caps.inspector.Inspect(ctx, ref)
		case core.Release:
			err = c.caps.releaser.Release(ctx, ref)
		}
		return err
	})
	st.Ref = ref
	return st.private(), saved, err
}

// resultOf returns the meaning of what a call has returned.
func resultOf(op core.Op, err error) (ev core.Returned) {
	ev.Err = err
	if err == nil {
		return ev
	}
	ev.Result = core.Failed
	if errors.Is(err, ErrNotFound) && (op == core.Stop || op == core.Release || op == core.Inspect) {
		ev.Result = core.NoSuchPod
	}
	if reject, ok := errors.AsType[*RejectError](err); ok {
		ev.Result, ev.Rejection = core.Refused, core.Rejection{Reason: reject.Reason, Message: reject.Message}
	}
	if retry, ok := errors.AsType[*RetryError](err); ok {
		if ev.After = retry.After; ev.After <= 0 {
			ev.After = retryMin
		}
	}
	return ev
}

// finish applies the result of a provider call.
func (c *caller) finish(t *entry, call *core.Call, st State, saved bool, err error) {
	ctx := c.contextOf(call.Op)
	if ctx.Err() != nil && err != nil {
		// Run is returning: nothing is wrong.
		c.end(t, call, func() { c.pods.apply(t, c.pods.moment(), core.NotMade{Lane: core.Calls}) })
		return
	}
	ev := resultOf(call.Op, err)
	ev.Report, ev.FP, ev.Saved = st.report(), c.prints.of(&st), saved
	var news core.News
	var latency time.Duration
	c.end(t, call, func() {
		at := c.pods.moment()
		latency = at.Since - call.Since
		_, wasEnding := t.Ending()
		before := c.observer.before(t)
		ev.Seq = c.pods.tick()
		if news = c.pods.apply(t, at, ev); news.Stale {
			return
		}
		if news.Lost {
			c.observer.warn(t, ReasonLost, actionSync, core.MessageLost)
		}
		c.observer.starts(t, before)
		c.warn(t, call.Op, ev, wasEnding, news.Canceled)
	})
	if news.Stale {
		return
	}
	switch {
	case err == nil || errors.Is(err, ErrNotFound):
		c.errors.OK(ctx, &t.callErrs, "Calls of the provider succeed again")
	case !news.Canceled && ev.Result != core.Refused:
		c.errors.Fail(ctx, c.handler, &t.callErrs, explain(Op(call.Op), t.ref, err), "Failed to call the provider",
			panicValues(err, "op", Op(call.Op), "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID)...)
	}
	c.observer.called(Op(call.Op), t.ref, latency, err)
}

// warn records the event of a failed call.
func (c *caller) warn(t *entry, op core.Op, ev core.Returned, wasEnding, canceled bool) {
	if ev.Err == nil {
		t.warned = ""
		return
	}
	if ev.Result == core.Refused && !wasEnding && (op == core.Start || op == core.Admit || op == core.Annotate) {
		c.observer.warn(t, ev.Rejection.Reason, actionAdmit, ev.Rejection.Message)
		return
	}
	if canceled || errors.Is(ev.Err, ErrNotFound) {
		return
	}
	var reason, action string
	switch op {
	case core.Annotate, core.Start:
		reason, action = ReasonFailedStart, actionStart
	case core.Admit:
		reason, action = reasonFailedAdmit, actionAdmit
	case core.Update:
		reason, action = reasonFailedUpdate, actionUpdate
	case core.Save, core.Remove:
		reason, action = reasonFailedCheckpoint, actionSync
	case core.Stop:
		reason, action = reasonFailedStop, actionStop
	case core.Release:
		reason, action = reasonFailedRelease, actionRelease
	default:
		return
	}
	c.observer.warn(t, reason, action, ev.Err.Error())
}

// active yields private copies of the admitted pods, the oldest first. They are
// collected on iteration, because most admitters of thousands of pods need no list
// of those before each.
func (c *caller) active(yield func(*corev1.Pod) bool) {
	c.pods.mu.Lock()
	var versions []core.Version
	for _, t := range c.pods.pods {
		if t.Admitted() {
			versions = append(versions, t.Version())
		}
	}
	c.pods.mu.Unlock()
	pods := make([]*corev1.Pod, len(versions))
	for i, v := range versions {
		pods[i] = v.Private()
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, pod := range pods {
		if !yield(pod) {
			return
		}
	}
}
