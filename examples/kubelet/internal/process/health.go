// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/examples/kubelet/internal/record"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
)

// health is what hooks and probes have found out about a run. It is the content
// of health.json, so that a new kubelet does not take a pod for unready that
// the old one had found ready, nor run a hook again that was through.
type health struct {
	PostStarted bool `json:"postStarted,omitempty"`
	Started     bool `json:"started,omitempty"`
	Ready       bool `json:"ready,omitempty"`
	PreStopped  bool `json:"preStopped,omitempty"`
}

// note changes the health of a run, if it is still the one.
func (c *container) note(run *shim.Run, change func(*health)) {
	if c.run != run {
		return
	}
	before := c.health
	if change(&c.health); c.health == before {
		return
	}
	if err := record.Write(filepath.Join(c.runDir(c.attempt), "health.json"), c.health); err != nil {
		klog.FromContext(c.pod.ctx).Error(err, "The health of a container is not on disk", "container", c.Name)
	}
}

// observe begins hooks and probes of a run that has come to run.
func (c *container) observe() {
	ctx, cancel := context.WithCancel(c.pod.ctx)
	c.watch = cancel
	hook := postStart(c.Container)
	if hook == nil && c.StartupProbe == nil && c.LivenessProbe == nil && c.ReadinessProbe == nil {
		c.note(c.run, func(h *health) { *h = health{PostStarted: true, Started: true, Ready: true} })
		return
	}
	a := &attendant{container: c, run: c.run, target: c.target(), health: c.health}
	c.pod.provider.wg.Go(func() { a.attend(ctx, hook) })
}

// An attendant runs hooks and probes of one run, in a goroutine of its own.
type attendant struct {
	container *container // only for do
	run       *shim.Run
	target    target
	health    health // as it was at the beginning
}

// do has the pod's goroutine note something about the run.
func (a *attendant) do(change func(*health)) {
	a.container.pod.do(func() { a.container.note(a.run, change) })
}

// fail has the run ended: the restart policy decides what follows.
func (a *attendant) fail(why string, graceSeconds *int64) {
	c := a.container
	c.pod.do(func() {
		if c.run != a.run || c.pod.deadline != nil {
			return
		}
		klog.FromContext(c.pod.ctx).V(2).Info("A container is ended", "container", c.Name, "why", why)
		d := grace(c.pod.spec)
		if graceSeconds != nil {
			d = time.Duration(*graceSeconds) * time.Second
		}
		c.stop(time.Now().Add(d))
	})
}

func (a *attendant) attend(ctx context.Context, hook *corev1.LifecycleHandler) {
	t := a.target
	if hook != nil && !a.health.PostStarted {
		if err := t.hook(ctx, hook); err != nil {
			if ctx.Err() == nil {
				a.fail(fmt.Sprintf("its postStart hook failed: %v", err), nil)
			}
			return
		}
		a.do(func(h *health) { h.PostStarted = true })
	}
	if p := t.spec.StartupProbe; p != nil && !a.health.Started {
		if !t.poll(ctx, p, func(ok bool) bool { return !ok }) { // until it succeeds
			a.failed(ctx, "startup", p)
			return
		}
	}
	a.do(func(h *health) {
		h.PostStarted = true
		h.Ready = h.Ready || !h.Started && t.spec.ReadinessProbe == nil
		h.Started = true
	})
	var wg sync.WaitGroup
	if p := t.spec.LivenessProbe; p != nil {
		wg.Go(func() {
			t.poll(ctx, p, func(ok bool) bool { return ok }) // until it fails
			a.failed(ctx, "liveness", p)
		})
	}
	if p := t.spec.ReadinessProbe; p != nil {
		wg.Go(func() {
			t.poll(ctx, p, func(ok bool) bool {
				a.do(func(h *health) { h.Ready = ok })
				return true
			})
		})
	}
	wg.Wait()
}

// failed ends the run because of a probe, unless that was interrupted.
func (a *attendant) failed(ctx context.Context, which string, p *corev1.Probe) {
	if ctx.Err() == nil {
		a.fail("its "+which+" probe failed", p.TerminationGracePeriodSeconds)
	}
}

// afterHook is how long a container has to end after a preStop hook that took
// all its time.
const afterHook = 2 * time.Second

// runPreStop runs the hook, until the deadline, and then stops the container.
func (c *container) runPreStop(hook *corev1.LifecycleHandler, deadline time.Time) {
	run, t := c.run, c.target()
	ctx, cancel := context.WithDeadline(c.pod.ctx, deadline)
	c.watch = cancel
	c.pod.provider.wg.Go(func() {
		defer cancel()
		err := t.hook(ctx, hook)
		c.pod.do(func() {
			if c.run != run || c.pod.ctx.Err() != nil {
				return
			}
			if err != nil {
				klog.FromContext(c.pod.ctx).V(2).Info("A preStop hook failed", "container", c.Name, "err", err)
			}
			c.note(run, func(h *health) { h.PreStopped = true })
			if !c.asked.Equal(past) {
				c.signal(later(c.asked, time.Now().Add(afterHook)))
			}
		})
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func postStart(c *corev1.Container) *corev1.LifecycleHandler {
	if c.Lifecycle == nil {
		return nil
	}
	return c.Lifecycle.PostStart
}

func preStop(c *corev1.Container) *corev1.LifecycleHandler {
	if c.Lifecycle == nil {
		return nil
	}
	return c.Lifecycle.PreStop
}
