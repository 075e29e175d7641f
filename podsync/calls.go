// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// startCall calls the provider for t if that is what comes next and there is a
// place. It returns when to look again.
func (c *Controller) startCall(t *track, now instant, waited bool) (wake instant) {
	s := t.nextCall(&c.rules, now, c.nameFree(t))
	if s.cancel {
		t.call.canceled = true
		t.call.cancel()
	}
	if s.op == "" || c.draining {
		return s.wake
	}
	q := queueOf(s.op)
	if !c.take(t, q, now, waited) {
		return never // its turn comes
	}
	c.seq++
	call := t.began(now, c.seq, s)
	ctx, cancel := context.WithCancel(c.callCtx)
	call.cancel = cancel
	c.running[laneOf(q)]++
	opts := StopOptions{Grace: s.grace}
	if t.end != nil {
		opts.Reason = t.end.reason
	}
	c.calls.Go(func() {
		defer cancel()
		st, err := c.provide(ctx, t.ref, call, opts)
		c.provided(t, call, st, err)
	})
	return never
}

// nameFree reports whether no other pod of the same name blocks it.
func (c *Controller) nameFree(t *track) bool {
	for other := c.names[nameOf(t.ref)]; other != nil; other = other.next {
		if other != t && other.blocksName() {
			return false
		}
	}
	return true
}

// provide makes one call of the provider. Nothing of what it returns is shared
// with it.
func (c *Controller) provide(ctx context.Context, ref Ref, call *call, opts StopOptions) (st State, err error) {
	var pod *corev1.Pod
	if call.pod != nil && call.op != OpInspect && call.op != OpRelease {
		pod = call.pod.DeepCopy()
	}
	switch call.op {
	case OpAdmit:
		err = c.caps.admitter.Admit(ctx, pod, c.active)
	case OpStart:
		st, err = c.cfg.Provider.Start(ctx, pod)
	case OpUpdate:
		st, err = c.caps.updater.Update(ctx, pod)
	case OpStop:
		opts.Pod = pod
		st, err = c.cfg.Provider.Stop(ctx, ref, opts)
	case OpInspect:
		st, err = c.caps.inspector.Inspect(ctx, ref)
	case OpRelease:
		err = c.caps.releaser.Release(ctx, ref)
	}
	st.Ref = ref
	st.Status = *st.Status.DeepCopy()
	return st, err
}

// provided takes the result of a call.
func (c *Controller) provided(t *track, call *call, st State, err error) {
	print := c.prints.of(&st)
	ctx := c.callCtx
	if ctx.Err() != nil && err != nil {
		c.abandoned(t, call) // Run is returning: nothing is wrong
		return
	}
	c.mu.Lock()
	now := c.now()
	c.seq++
	canceled := call.canceled
	c.running[laneOf(queueOf(call.op))]--
	wasEnding := t.end != nil
	lost := t.returned(&c.rules, now, c.seq, &st, print, err)
	if lost {
		c.warn(t, ReasonLost, actionSync, messageLost)
	}
	c.afterCall(t, call, err, wasEnding)
	c.touch(t)
	c.mu.Unlock()
	poke(c.kick)

	switch {
	case err == nil || errors.Is(err, ErrNotFound):
		c.providerErrors.OK(ctx, &t.callErrs, "Calls of the provider succeed again")
	case !canceled && !isReject(err):
		c.providerErrors.Fail(ctx, c.cfg.ErrorHandler, &t.callErrs, explain(call.op, t.ref, err), "Failed to call the provider",
			"op", call.op, "pod", klog.KRef(t.ref.Namespace, t.ref.Name), "podUID", t.ref.UID)
	}
	if hook := c.cfg.Hooks.ProviderCall; hook != nil {
		hook(ProviderCall{Op: call.op, Ref: t.ref, Latency: now - call.since, Err: err})
	}
}

// abandoned takes note that a call ended because Run is returning.
func (c *Controller) abandoned(t *track, call *call) {
	c.mu.Lock()
	t.call = nil
	c.running[laneOf(queueOf(call.op))]--
	c.mu.Unlock()
	poke(c.kick)
}

func isReject(err error) bool {
	_, ok := errors.AsType[*RejectError](err)
	return ok
}

// afterCall makes the event that a result is worth.
func (c *Controller) afterCall(t *track, call *call, err error, wasEnding bool) {
	if err == nil {
		t.warned = ""
		return
	}
	if reject, ok := errors.AsType[*RejectError](err); ok && !wasEnding && (call.op == OpStart || call.op == OpAdmit) {
		c.warn(t, reject.Reason, actionAdmit, reject.Message)
		return
	}
	if call.canceled || errors.Is(err, ErrNotFound) {
		return
	}
	switch call.op {
	case OpAdmit:
		c.warn(t, reasonFailedAdmit, actionAdmit, err.Error())
	case OpStart:
		c.warn(t, ReasonFailedStart, actionStart, err.Error())
	case OpUpdate:
		c.warn(t, reasonFailedUpdate, actionUpdate, err.Error())
	case OpStop:
		c.warn(t, reasonFailedStop, actionStop, err.Error())
	case OpRelease:
		c.warn(t, reasonFailedRelease, actionRelease, err.Error())
	}
}

// warn records a Warning about t, once for each distinct message in a row.
func (c *Controller) warn(t *track, reason, action, message string) {
	recorder := c.cfg.EventRecorder
	if recorder == nil || t.warned == reason+message {
		return
	}
	t.warned = reason + message
	regarding := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: t.ref.Namespace, Name: t.ref.Name, UID: t.ref.UID,
	}
	c.later(func() { recorder.Eventf(regarding, nil, corev1.EventTypeWarning, reason, action, "%s", message) })
}
