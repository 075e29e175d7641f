// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// resize makes the resources of the pod and of its running containers those of the spec,
// as far as that can be done now. The start and the end of each container call it again.
func (p *pod) resize() {
	if p.node.caps.resizer == nil || p.deadline != nil || !p.hasSandbox() {
		return
	}
	s := p.sizing()
	var running []*container
	for _, c := range p.containers {
		if c.kind != core.Ephemeral && (c.m.Listed(core.Running) || c.m.Starting()) {
			running = append(running, c)
			rec := c.m.Record()
			s.runs = append(s.runs, sizedRun{spec: c.Container, has: rec.Resources, unsure: rec.Resizing, busy: c.m.Starting() || c.m.Ending()})
		}
	}
	plan := planResize(s)
	for _, i := range plan.restart {
		running[i].replace()
	}
	if !plan.apply || p.resizing || time.Now().Before(p.resizeDue) {
		return
	}
	type task struct {
		container *container
		id        ContainerID
		spec      *corev1.Container
		grant     string
	}
	var tasks []task
	for _, i := range plan.resize {
		c := running[i]
		tasks = append(tasks, task{c, c.id(c.m.Attempt()), c.Container.DeepCopy(), c.wanted()})
		c.apply(core.Resizing{Attempt: c.m.Attempt()})
	}
	pod, want, done := p.spec.DeepCopy(), p.want, 0
	p.resizing = true
	p.begin()
	p.call(func(ctx context.Context) error {
		if err := p.resizePod(ctx, pod, true); err != nil {
			return err
		}
		for _, t := range tasks {
			if err := p.node.caps.resizer.Resize(ctx, t.id, pod, t.spec); err != nil {
				return err
			}
			done++
		}
		if plan.shrink {
			return p.resizePod(ctx, pod, false)
		}
		return nil
	}, func(err error) {
		p.resizing = false
		for _, t := range tasks[:done] {
			t.container.apply(core.Resized{Attempt: t.id.Attempt, Resources: t.grant})
		}
		switch {
		case err != nil:
			if err.Error() != p.resizeFailure {
				p.event(corev1.EventTypeWarning, "ResizeError", "Resizing", "Pod resize error: %v", err)
			}
			p.resizeFailure, p.resizeDue = err.Error(), time.Now().Add(core.KillRetry)
			p.retry(core.KillRetry)
		default:
			p.resizeFailure = ""
			if s.resizesPod {
				p.grown = &want
			}
			if plan.shrink {
				p.resizedTo(want)
			}
		}
	})
}

// resizePod calls the PodResizer, if the Runtime is one.
func (p *pod) resizePod(ctx context.Context, pod *corev1.Pod, grow bool) error {
	if r := p.node.caps.podResizer; r != nil {
		return r.ResizePod(ctx, pod, grow)
	}
	return nil
}

// sizing returns the input of planResize without containers.
func (p *pod) sizing() sizing {
	return sizing{pod: p.spec, whole: p.whole, grown: p.grown, want: p.want, resizesPod: p.node.caps.podResizer != nil}
}

// begin records that the pod may have more than whole, also after an error.
func (p *pod) begin() {
	if p.grown == nil && p.node.caps.podResizer != nil {
		p.grown = &p.whole
	}
}

// mustGrow reports whether the pod as a whole must grow before a container starts.
func (p *pod) mustGrow() bool {
	s := p.sizing()
	if s.mustGrow() {
		p.begin()
		return true
	}
	return false
}

// resizedTo records that the pod as a whole has resources.
func (p *pod) resizedTo(whole corev1.ResourceRequirements) {
	p.whole, p.grown = whole, nil
	if !p.wholeKept {
		return
	}
	if err := p.keep(p.desired, p.spec, p.pending); err != nil {
		// The next process applies them again.
		klog.FromContext(p.ctx).V(4).Info("The resources in force can't be written", "err", err)
	}
}

// resizeInProgress reports whether resources that were given to the pod are not in force.
func (p *pod) resizeInProgress() bool {
	if p.stopped || !p.hasSandbox() {
		return false
	}
	if s := p.sizing(); s.differs() {
		return true
	}
	return slices.ContainsFunc(p.containers, func(c *container) bool {
		rec := c.m.Record()
		return c.kind != core.Ephemeral && c.m.Listed(core.Running) && rec.Resources != "" && (rec.Resources != c.wanted() || rec.Resizing)
	})
}
