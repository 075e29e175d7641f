// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
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
		if c.kind != core.Ephemeral && (c.m.Listed(core.Running) || c.m.Starting) {
			running = append(running, c)
			rec := c.m.Record
			s.runs = append(s.runs, sizedRun{spec: c.Container, has: rec.Resources, unsure: rec.Resizing, busy: c.m.Starting || c.m.Ending()})
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
		tasks = append(tasks, task{c, c.id(c.m.Attempt), c.Container.DeepCopy(), c.wanted()})
		c.apply(core.Resizing{Attempt: c.m.Attempt})
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
		rec := c.m.Record
		return c.kind != core.Ephemeral && c.m.Listed(core.Running) && rec.Resources != "" && (rec.Resources != c.wanted() || rec.Resizing)
	})
}

// A grant is the resources that a run of a container was given.
type grant struct {
	corev1.ResourceRequirements // its own
	// Inherited are the limits of the pod for which the container has none.
	Inherited corev1.ResourceList `json:"inherited,omitempty"`
}

// grantOf returns the resources that a container must have.
func grantOf(pod *corev1.Pod, c *corev1.Container) grant {
	g := grant{ResourceRequirements: corev1.ResourceRequirements{Limits: c.Resources.Limits, Requests: c.Resources.Requests}}
	if pod.Spec.Resources == nil {
		return g
	}
	for name, q := range pod.Spec.Resources.Limits {
		if own := c.Resources.Limits[name]; own.Sign() > 0 {
			continue
		}
		if g.Inherited == nil {
			g.Inherited = corev1.ResourceList{}
		}
		g.Inherited[name] = q
	}
	return g
}

// wanted returns the text of the grant that the container must have.
func (c *container) wanted() string { return grantOf(c.pod.spec, c.Container).text() }

// text returns the grant as a text to store and to compare.
func (g grant) text() string {
	text, _ := json.Marshal(g)
	return string(text)
}

// parseGrant returns the grant with a text, and an empty one if text is none.
func parseGrant(text string) (g grant) {
	if text == "" || json.Unmarshal([]byte(text), &g) != nil {
		return grant{}
	}
	return g
}

// restarts reports whether a container that has g needs another run to have want, by
// its resize policy.
func (g grant) restarts(want grant, policy []corev1.ContainerResizePolicy) bool {
	return slices.ContainsFunc(policy, func(p corev1.ContainerResizePolicy) bool {
		differ := func(a, b corev1.ResourceList) bool {
			x, y := a[p.ResourceName], b[p.ResourceName]
			return x.Cmp(y) != 0
		}
		limits := func(g grant) corev1.ResourceList {
			if q, ok := g.Inherited[p.ResourceName]; ok {
				return corev1.ResourceList{p.ResourceName: q}
			}
			return g.Limits
		}
		return p.RestartPolicy == corev1.RestartContainer && (differ(limits(g), limits(want)) || differ(g.Requests, want.Requests))
	})
}

// A sizing is the input of planResize: a pod with the resources that it has and should
// have.
type sizing struct {
	pod  *corev1.Pod // with the resources that it should have
	runs []sizedRun
	// whole are the resources of the pod as a whole that are in force. grown is nil if the
	// pod has no more than that; else it has grown to at least these, and must shrink.
	whole      corev1.ResourceRequirements
	grown      *corev1.ResourceRequirements
	want       corev1.ResourceRequirements // PodResources of pod
	resizesPod bool                        // the Runtime is a PodResizer
}

// A sizedRun is a container that runs or is being started.
type sizedRun struct {
	spec   *corev1.Container
	has    string // the text of its grant
	unsure bool   // or it has another one: a Resize has been called and has not succeeded
	busy   bool   // it is being started, or ends anyway: it can't be resized now
}

// A resizePlan is the way in which the resources of a pod become those of its spec. The
// pod grows first, and shrinks last: a container never has more than its pod.
type resizePlan struct {
	restart []int // runs to end, because of the resize policy
	resize  []int // runs to resize
	apply   bool  // something can be done now
	shrink  bool  // after that no run has resources that it should not have
}

// planResize returns how the resources of a running pod become those of its spec.
func planResize(s sizing) (plan resizePlan) {
	plan.shrink = true
	for i, run := range s.runs {
		want := grantOf(s.pod, run.spec)
		switch {
		case run.has == want.text() && !run.unsure:
		case run.busy:
			plan.shrink = false
		case parseGrant(run.has).restarts(want, run.spec.ResizePolicy):
			plan.restart, plan.shrink = append(plan.restart, i), false
		default:
			plan.resize = append(plan.resize, i)
		}
	}
	plan.apply = len(plan.resize) > 0 || s.differs() && plan.shrink || s.mustGrow()
	return plan
}

// differs reports whether the pod as a whole has other resources than it should have.
func (s *sizing) differs() bool {
	return s.resizesPod && (s.grown != nil || !sameRequirements(s.whole, s.want))
}

// mustGrow reports whether the pod as a whole may have less than it should have.
func (s *sizing) mustGrow() bool {
	has := &s.whole
	if s.grown != nil {
		has = s.grown
	}
	return s.resizesPod && !sameRequirements(*has, s.want)
}

// sameRequirements reports whether a and b are the same resources.
func sameRequirements(a, b corev1.ResourceRequirements) bool {
	return apiequality.Semantic.DeepEqual(a, b)
}
