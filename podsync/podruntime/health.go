// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// A watch is the hooks and probes of one run. Canceling essential ends all of it;
// canceling live ends all but the readiness probe, which goes on while the container
// is being stopped.
type watch struct {
	attempt   int
	live      context.CancelFunc
	essential context.CancelFunc
}

// observe begins the hooks and probes of a run, or its readiness probe alone if the run ends.
func (c *container) observe(ends bool) {
	if c.watch != nil {
		return
	}
	ctx, cancel := context.WithCancel(c.pod.ctx)
	live, cancelLive := context.WithCancel(ctx)
	c.watch = &watch{c.m.Attempt(), cancelLive, cancel}
	if ends {
		cancelLive()
	}
	a := &attendant{c: c, attempt: c.m.Attempt(), target: c.target(), startedAt: c.m.Record().Ran, begin: c.m.Record()}
	hook := c.handler(false)
	c.pod.node.wg.Go(func() { a.attend(ctx, live, hook) })
}

// unwatch ends the hooks and probes of a run, except for the readiness probe if
// ready is true.
func (c *container) unwatch(ready bool) {
	if c.watch == nil {
		return
	}
	c.watch.live()
	if !ready {
		c.watch.essential()
		c.watch = nil
	}
}

// target returns the target for probes and hooks of the newest run.
func (c *container) target() target {
	host := ""
	if ips := c.pod.addresses().PodIPs; len(ips) > 0 {
		host = ips[0]
	}
	return target{c.pod.node.caps.execer, c.pod.node.cfg.GRPC, c.id(c.m.Attempt()), c.Container, host, &c.pod.node.panics}
}

// An attendant runs hooks and probes of one run, in a goroutine of its own.
type attendant struct {
	c         *container // only for do
	attempt   int
	target    target
	startedAt time.Time
	begin     core.Record // the record at the beginning
}

// probed records a result in the pod's goroutine.
func (a *attendant) probed(result core.Probed) {
	result.Attempt = a.attempt
	a.c.pod.do(func() { a.c.apply(result) })
}

// graceAfter returns the time that a run has to end after a failure of a probe, or of a hook if
// probe is nil.
func (c *container) graceAfter(probe *corev1.Probe) time.Duration {
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return limited(*probe.TerminationGracePeriodSeconds)
	}
	return grace(c.pod.spec)
}

// fail ends the run because of a probe, or of a hook if probe is nil. After a probe the next one
// starts whatever the exit code, as in the kubelet, unless the policy is Never; after a hook the
// code decides, too.
func (a *attendant) fail(reason, message string, probe *corev1.Probe) {
	a.c.pod.do(func() {
		c := a.c
		if c.m.Attempt() != a.attempt || !c.m.MayBeProbed() {
			return
		}
		policy := string(c.pod.spec.Spec.RestartPolicy)
		if c.RestartPolicy != nil {
			policy = string(*c.RestartPolicy)
		}
		again := probe != nil && policy != string(corev1.RestartPolicyNever)
		follows := ""
		if again {
			follows = ", will be restarted"
		}
		c.pod.event(corev1.EventTypeNormal, "Killing", "Stopping", "Container %s %s%s", c.Name, message, follows)
		klog.FromContext(c.pod.ctx).V(2).Info("A container is ended", "container", c.Name, "reason", reason, "message", message)
		c.apply(core.Unhealthy{Attempt: a.attempt, By: time.Now().Add(c.graceAfter(probe)), Again: again})
		c.unwatch(true)
	})
}

func (a *attendant) attend(ctx, live context.Context, hook *corev1.LifecycleHandler) {
	t := a.target
	if hook != nil && !a.begin.PostStarted {
		if err := t.hook(live, hook); err != nil {
			if live.Err() == nil {
				a.event("FailedPostStartHook", fmt.Sprintf("PostStartHook failed: %v", err))
				a.fail("FailedPostStartHook", "failed its postStart hook", nil)
			}
			return
		}
		a.probed(core.Probed{PostStarted: true})
	}
	if p := t.spec.StartupProbe; p != nil && !a.begin.Started {
		if !t.poll(live, p, a.startedAt, a.report("Startup"), func(bool) bool { return false }) { // until the first verdict
			a.failed(live, "startup", p)
			return
		}
	}
	started := core.Probed{PostStarted: true, Started: true}
	if t.spec.ReadinessProbe == nil {
		started.Ready = new(true)
	}
	a.probed(started)
	var wg sync.WaitGroup
	if p := t.spec.LivenessProbe; p != nil {
		wg.Go(func() {
			t.poll(live, p, a.startedAt, a.report("Liveness"), func(ok bool) bool { return ok }) // until it fails
			a.failed(live, "liveness", p)
		})
	}
	if p := t.spec.ReadinessProbe; p != nil {
		wg.Go(func() {
			t.poll(ctx, p, a.startedAt, a.report("Readiness"), func(ok bool) bool {
				a.probed(core.Probed{Ready: &ok})
				return true
			})
		})
	}
	wg.Wait()
}

// report returns a function that records the results of a probe that are not a
// plain success.
func (a *attendant) report(which string) func(error) {
	return func(err error) {
		reason, message := "Unhealthy", fmt.Sprintf("%s probe failed: %v", which, err)
		if w := (*warning)(nil); errors.As(err, &w) {
			reason, message = "ProbeWarning", fmt.Sprintf("%s probe warning: %v", which, err)
		}
		a.event(reason, message)
	}
}

func (a *attendant) event(reason, message string) {
	a.c.pod.do(func() { a.c.pod.event(corev1.EventTypeWarning, reason, "Probing", "%s", message) })
}

// failed ends the run because of a probe, unless that was interrupted.
func (a *attendant) failed(ctx context.Context, which string, p *corev1.Probe) {
	if ctx.Err() == nil {
		a.fail("Unhealthy", "failed "+which+" probe", p)
	}
}

// handler returns the preStop hook of the container if stop is true, else its
// postStart hook; nil if there is none.
func (c *container) handler(stop bool) *corev1.LifecycleHandler {
	switch {
	case c.Lifecycle == nil:
		return nil
	case stop:
		return c.Lifecycle.PreStop
	}
	return c.Lifecycle.PostStart
}

// callPreStop calls the preStop hook, or shortens it if it runs.
func (c *container) callPreStop(by time.Time) {
	c.unwatch(true)
	if !c.apply(core.HookCalled{By: by}) {
		return
	}
	if c.hook != nil {
		time.AfterFunc(time.Until(by), c.hook)
		return
	}
	t, attempt, hook := c.target(), c.m.Attempt(), c.handler(true)
	ctx, cancel := context.WithDeadline(c.pod.ctx, by)
	c.hook = cancel
	c.pod.node.wg.Go(func() {
		defer cancel()
		err := t.hook(ctx, hook)
		c.pod.do(func() {
			if c.m.Attempt() != attempt || c.hook == nil || c.pod.ctx.Err() != nil {
				return
			}
			if err != nil {
				c.pod.event(corev1.EventTypeWarning, "FailedPreStopHook", "Stopping", "PreStopHook failed: %v", err)
				klog.FromContext(c.pod.ctx).V(2).Info("A preStop hook failed", "container", c.Name, "err", err)
			}
			c.hook = nil
			c.apply(core.HookEnded{Attempt: attempt})
		})
	})
}
