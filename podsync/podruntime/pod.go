// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// A pod is a pod that the Provider holds. Its fields belong to its goroutine, to which
// everything else hands functions through the inbox, except for those below mu.
//
// Invariant: nothing is decided while stale is true.
// Invariant: after deadline is set, nothing is started.
type pod struct {
	*inbox
	node     *node
	ref      podsync.Ref
	dir      string
	accepted time.Time
	desired  *corev1.Pod                 // of the API; never changed, only replaced
	spec     *corev1.Pod                 // desired, with the resources that the pod has been given
	pending  pending                     // why they are others than those of desired
	want     corev1.ResourceRequirements // of the pod as a whole: PodResources of spec
	reports  reports
	ctx      context.Context
	end      context.CancelFunc
	done     chan struct{}

	// The Runtime's list.
	stale      bool         // something has happened since
	unseen     bool         // this process found the pod, and the Runtime has not listed it since
	containers []*container // init, regular, ephemeral
	sandbox    *Sandbox     // nil: none
	removing   map[ContainerID]bool

	// The volumes of plugins.
	plugins bool // it has some
	mounted bool // by this process

	// The calls for the sandbox and for the volumes of plugins.
	sandboxBusy     bool
	sandboxFailure  *core.Failure
	sandboxFailures int
	sandboxDue      time.Time
	tearing         bool // TearDownPod has been called and has not returned
	tornDown        bool

	facts core.Pod // for the containers

	// The restart of all containers.
	past       pastRecord
	restarting bool // by a rule

	// The end.
	deadline    *time.Time // not nil: the pod is being stopped
	unkept      bool       // the deadline is not on the disk
	stopped     bool       // nothing runs, and nothing will
	starting    context.Context
	endStarting context.CancelFunc // ends starts under way

	// The resize: see sizing.
	whole         corev1.ResourceRequirements
	grown         *corev1.ResourceRequirements
	wholeKept     bool // pod.json has whole
	resizing      bool
	resizeStarted bool // the event ResizeStarted was recorded, and not yet the one of its end
	resizeFailure string
	resizeDue     time.Time // the earliest time of the next try

	// Data from the API.
	refreshing bool
	refreshDue map[string]time.Time // by volume
	unfresh    map[string]bool      // volumes whose last refresh failed

	prepare    sync.Mutex     // held while a goroutine makes files of the pod
	memory     *podenv.Memory // what its containers have read
	keptInputs int            // the version of memory on disk; guarded by prepare

	mu    sync.Mutex
	state podsync.State // the last one that was published
}

// keep writes pod.json.
func (p *pod) keep(desired, spec *corev1.Pod, why pending) error {
	rec := podRecord{Pod: desired, Accepted: p.accepted}
	if why.reason != "" {
		rec.InForce = spec
	}
	if p.node.caps.podResizer != nil && (p.grown != nil || !sameRequirements(p.whole, PodResources(spec))) {
		rec.Whole = &p.whole
	}
	err := record.Write(filepath.Join(p.dir, "pod.json"), rec)
	if err == nil {
		p.wholeKept = rec.Whole != nil
	}
	return err
}

// setSpec makes spec that of the pod: containers that are new in it are added.
func (p *pod) setSpec(spec *corev1.Pod) {
	p.spec, p.want, p.facts.Grace = spec, PodResources(spec), grace(spec)
	known := map[string]*container{}
	for _, c := range p.containers {
		known[c.Name] = c
	}
	for _, s := range containersOf(&spec.Spec) {
		c := known[s.Name]
		if c == nil {
			p.containers = append(p.containers, &container{Container: s.Container, kind: s.kind, pod: p, reports: reports{groups: p.reports.groups}, m: core.New(&p.facts, s.kind, s.Container)})
			continue
		}
		c.Container = s.Container
		c.apply(core.SpecChanged{Spec: s.Container})
	}
}

// leave takes the pod out of the reports, because it must not hold up those about other pods:
// with Leave when it is stopped, and with Retire at its end.
func (p *pod) leave(leave func(*apierr.Group, *apierr.Member)) {
	for a := range p.node.groups {
		leave(&p.node.groups[a], &p.reports.members[a])
		for _, c := range p.containers {
			leave(&p.node.groups[a], &c.reports.members[a])
		}
	}
}

// lasting returns the context of a start that goes on when the pod ends, for callTimeout: if a
// runtime is cut off while it starts a container, the container may end as one that failed.
func (p *pod) lasting() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(p.ctx)
	forget := context.AfterFunc(p.starting, func() {
		t := time.AfterFunc(callTimeout, cancel)
		context.AfterFunc(ctx, func() { t.Stop() })
	})
	return ctx, func() { forget(); cancel() }
}

// labelled returns the spec in force with the newest labels and annotations, which change
// without an Update.
func (p *pod) labelled() *corev1.Pod {
	if p.node.cfg.Pod == nil {
		return p.spec
	}
	var newest *corev1.Pod
	_ = p.node.panics.contain(p.ctx, "Config.Pod", func() error { newest = p.node.cfg.Pod(p.ref); return nil })
	if newest == nil || newest.UID != p.spec.UID || maps.Equal(newest.Labels, p.spec.Labels) && maps.Equal(newest.Annotations, p.spec.Annotations) {
		return p.spec
	}
	spec := p.spec.DeepCopy()
	spec.Labels, spec.Annotations = maps.Clone(newest.Labels), maps.Clone(newest.Annotations)
	return spec
}

// call runs f, with a deadline, in a goroutine of its own and then done in that of
// the pod.
func (p *pod) call(f func(context.Context) error, done func(error)) {
	p.node.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, callTimeout)
		defer cancel()
		err := f(ctx)
		p.do(func() {
			p.stale = true
			done(err)
		})
	})
}

// retry calls decide again after a while.
func (p *pod) retry(d time.Duration) { p.after(d, func() { p.stale = true }) }

// event records an event about the pod. Only the goroutine of the pod calls it.
func (p *pod) event(kind, reason, action, format string, args ...any) {
	if p.node.cfg.EventRecorder != nil {
		_ = p.node.panics.contain(p.ctx, "EventRecorder.Eventf", func() error {
			p.node.cfg.EventRecorder.Eventf(p.spec, nil, kind, reason, action, "%s", report.Note(fmt.Sprintf(format, args...)))
			return nil
		})
	}
}

// addresses returns the addresses of the pod and the node. A ready sandbox without addresses is in
// the network of the node; in one that is not ready, as after a boot, the pod has none.
func (p *pod) addresses() podenv.Addresses {
	a := podenv.Addresses{HostIPs: p.node.cfg.HostIPs}
	switch {
	case p.node.caps.sandboxer == nil:
		a.PodIPs = a.HostIPs
	case p.sandbox == nil:
	case len(p.sandbox.IPs) > 0:
		a.PodIPs = p.sandbox.IPs
	case p.sandbox.Ready || p.spec.Spec.HostNetwork:
		a.PodIPs = a.HostIPs
	}
	return a
}

// hasSandbox reports whether containers of the pod can run.
func (p *pod) hasSandbox() bool {
	return p.node.caps.sandboxer == nil || p.sandbox != nil && p.sandbox.Ready && !p.sandboxBusy && !p.tornDown
}
