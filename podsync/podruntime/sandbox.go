// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// setUp mounts the volumes of plugins and makes the sandbox.
func (p *pod) setUp() {
	name, _ := hostnameOf(p.spec, p.node.cfg.DNS.Domain)
	spec := SandboxSpec{Pod: p.spec.DeepCopy(), Hostname: name, DNS: dnsOf(p.spec, p.node.cfg.DNS)}
	ctx, sandboxer := p.starting, p.node.caps.sandboxer
	p.sandboxBusy = true
	p.node.wg.Go(func() {
		err := plugins{p.node.cfg.Volumes, &p.node.panics}.mount(ctx, spec.Pod, p.dir)
		mounted := err == nil
		if mounted && sandboxer != nil {
			if err = p.node.gate.enter(ctx, ticket{created: spec.Pod.CreationTimestamp.Time}); err == nil {
				_, err = sandboxer.SetUpPod(ctx, spec)
				p.node.gate.leave()
			}
		}
		p.do(func() {
			p.sandboxBusy, p.stale = false, true
			p.mounted = p.mounted || mounted
			switch {
			case err == nil:
				p.sandboxFailure, p.sandboxFailures = nil, 0
				p.sandboxWorks()
				if sandboxer != nil {
					p.resizedTo(PodResources(spec.Pod))
				}
			case ctx.Err() == nil:
				p.sandboxFailure = failureOf(err, "FailedCreatePodSandBox")
				p.sandboxFailed(err, p.sandboxFailure.Reason)
			}
		})
	})
}

// tearDown ends the sandbox of a pod whose containers have ended, and unmounts the volumes of
// plugins.
func (p *pod) tearDown() {
	p.sandboxBusy, p.tearing = true, true
	spec := p.spec
	p.call(func(ctx context.Context) error {
		if p.node.caps.sandboxer != nil {
			if err := p.node.caps.sandboxer.TearDownPod(ctx, p.ref.UID); err != nil {
				return err
			}
		}
		return plugins{p.node.cfg.Volumes, &p.node.panics}.unmount(ctx, spec, p.dir)
	}, func(err error) {
		p.sandboxBusy, p.tearing = false, false
		if p.tornDown = err == nil; err != nil {
			p.sandboxFailed(err, "FailedKillPod")
		} else {
			p.sandboxWorks()
		}
	})
}

// sandboxFailed puts off the next sandbox call.
func (p *pod) sandboxFailed(err error, reason string) {
	a := sandboxing
	if reason == reasonFailedMount {
		a = mounting // a volume that is never mounted must not hide failures of sandboxes
	}
	p.reports.fail(p.ctx, a, err, "A sandbox call failed", "reason", reason)
	p.event(corev1.EventTypeWarning, reason, "Sandboxing", "%v", err)
	p.sandboxDue = time.Now().Add(core.Preparation(p.sandboxFailures))
	p.sandboxFailures++
}

// sandboxWorks reports the end of failures.
func (p *pod) sandboxWorks() {
	p.reports.ok(p.ctx, mounting)
	p.reports.ok(p.ctx, sandboxing)
}
