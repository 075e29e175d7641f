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

	"github.com/kubewright/kubewright/internal/record"
)

// note changes the record of the newest run and writes it. A disk that is full
// keeps nothing from going on: the next Provider runs the hook or probe again.
func (c *container) note(change func(*runRecord)) {
	before := c.rec
	if change(&c.rec); c.rec == before {
		return
	}
	if err := record.Write(runFile(c.pod.dir, c.Name, c.attempt), c.rec); err != nil {
		klog.FromContext(c.pod.ctx).Error(err, "The record of a container is not on disk", "container", c.Name)
	}
}

// A watch is the hooks and probes of one run. Canceling essential ends all of it;
// canceling live ends all but the readiness probe, which goes on while the container
// is being stopped.
type watch struct {
	attempt   int
	live      context.CancelFunc
	essential context.CancelFunc
}

// observe begins the hooks and probes of a run that is listed as running.
func (c *container) observe() {
	if !c.watched() || c.watch != nil || c.pod.deadline != nil || !c.endBy.IsZero() {
		return
	}
	ctx, cancel := context.WithCancel(c.pod.ctx)
	live, cancelLive := context.WithCancel(ctx)
	c.watch = &watch{c.attempt, cancelLive, cancel}
	a := &attendant{c: c, attempt: c.attempt, target: c.target(), startedAt: c.rec.Ran, begin: c.rec}
	c.pod.p.wg.Go(func() { a.attend(ctx, live, c.handler(false)) })
}

// watched reports whether a run has a postStart hook or probes.
func (c *container) watched() bool {
	return c.handler(false) != nil || c.StartupProbe != nil || c.LivenessProbe != nil || c.ReadinessProbe != nil
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
	return target{c.pod.p, c.id(c.attempt), c.Container, c.pod.addresses().PodIPs[0]}
}

// An attendant runs hooks and probes of one run, in a goroutine of its own.
type attendant struct {
	c         *container // only for do
	attempt   int
	target    target
	startedAt time.Time
	begin     runRecord // the record at the beginning
}

// do calls change in the pod's goroutine if the run is still the newest one.
func (a *attendant) do(change func(*runRecord)) {
	a.c.pod.do(func() {
		if c := a.c; c.attempt == a.attempt && c.obs != nil && c.obs.State == ContainerRunning {
			c.note(change)
		}
	})
}

// fail ends the run: the restart policy decides what follows.
func (a *attendant) fail(reason, message string, graceSeconds *int64) {
	a.c.pod.do(func() {
		c := a.c
		if c.attempt != a.attempt || c.pod.deadline != nil || !c.endBy.IsZero() {
			return
		}
		c.pod.event(corev1.EventTypeNormal, "Killing", "Stopping", "Container %s %s, will be restarted", c.Name, message)
		klog.FromContext(c.pod.ctx).V(2).Info("A container is ended", "container", c.Name, "reason", reason, "message", message)
		d := grace(c.pod.spec)
		if graceSeconds != nil {
			d = time.Duration(*graceSeconds) * time.Second
		}
		c.endBy = time.Now().Add(d)
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
		a.do(func(r *runRecord) { r.PostStarted = true })
	}
	if p := t.spec.StartupProbe; p != nil && !a.begin.Started {
		if !t.poll(live, p, a.startedAt, a.report("Startup"), func(bool) bool { return false }) { // until the first verdict
			a.failed(live, "startup", p)
			return
		}
	}
	a.do(func(r *runRecord) {
		r.PostStarted = true
		r.Ready = r.Ready || t.spec.ReadinessProbe == nil
		r.Started = true
	})
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
				a.do(func(r *runRecord) { r.Ready = ok })
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
		a.fail("Unhealthy", "failed "+which+" probe", p.TerminationGracePeriodSeconds)
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
	if c.hook != nil {
		c.hookBy = by
		time.AfterFunc(time.Until(by), c.hook)
		return
	}
	t, attempt := c.target(), c.attempt
	ctx, cancel := context.WithDeadline(c.pod.ctx, by)
	c.hook, c.hookBy = cancel, by
	c.pod.p.wg.Go(func() {
		defer cancel()
		err := t.hook(ctx, c.handler(true))
		c.pod.do(func() {
			if c.attempt != attempt || c.hook == nil || c.pod.ctx.Err() != nil {
				return
			}
			if err != nil {
				c.pod.event(corev1.EventTypeWarning, "FailedPreStopHook", "Stopping", "PreStopHook failed: %v", err)
				klog.FromContext(c.pod.ctx).V(2).Info("A preStop hook failed", "container", c.Name, "err", err)
			}
			c.hook = nil
			c.note(func(r *runRecord) { r.PreStopped = true })
		})
	})
}
