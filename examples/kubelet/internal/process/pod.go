// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/examples/kubelet/internal/record"
	"github.com/kubewright/kubewright/podsync"
)

// A pod is one pod that the provider holds. Its fields belong to its goroutine,
// but for those below mu.
type pod struct {
	provider   *Provider
	ref        podsync.Ref
	spec       *corev1.Pod
	dir        string
	accepted   time.Time
	containers []*container // those that initialize, then the others
	deadline   *time.Time   // not nil: it is being stopped
	unkept     bool         // the deadline is not on the disk
	stopped    bool         // nothing runs, and nothing will

	ctx  context.Context // of its goroutines
	end  context.CancelFunc
	done chan struct{}

	// starting ends when the pod is to stop, so that no start waits for the API
	// then.
	starting    context.Context
	endStarting context.CancelFunc

	mu    sync.Mutex
	work  []func() // for the goroutine
	wake  chan struct{}
	state podsync.State
}

// load returns the pod in a folder, as it stands. Its loop is the caller's to
// start.
func (p *Provider) load(dir string) (*pod, error) {
	var rec podRecord
	ok, err := record.Read(filepath.Join(dir, "pod.json"), &rec)
	if err != nil {
		return nil, err
	}
	if !ok || rec.Pod == nil {
		return nil, fmt.Errorf("no pod.json")
	}
	pod := &pod{
		provider: p,
		ref:      podsync.RefOf(rec.Pod),
		spec:     rec.Pod,
		dir:      dir,
		accepted: rec.Accepted,
		done:     make(chan struct{}),
		wake:     make(chan struct{}, 1),
	}
	pod.ctx, pod.end = context.WithCancel(klog.NewContext(p.ctx, klog.LoggerWithValues(klog.FromContext(p.ctx), "pod", klog.KObj(rec.Pod), "uid", rec.Pod.UID)))
	pod.starting, pod.endStarting = context.WithCancel(pod.ctx)
	var stop stopRecord
	if ok, err = record.Read(filepath.Join(dir, "stop.json"), &stop); err != nil {
		return nil, err
	} else if ok {
		pod.deadline = &stop.Deadline
		pod.endStarting()
	}
	for _, c := range containersOf(&rec.Pod.Spec) {
		c.pod, c.dir = pod, filepath.Join(dir, "containers", c.Name)
		if err := c.load(); err != nil {
			return nil, fmt.Errorf("container %s: %w", c.Name, err)
		}
		pod.containers = append(pod.containers, c)
	}
	pod.stopped = pod.deadline != nil && !slices.ContainsFunc(pod.containers, func(c *container) bool { return c.run != nil })
	pod.publish()
	return pod, nil
}

// containersOf returns the containers of a pod in the order in which they start.
func containersOf(spec *corev1.PodSpec) []*container {
	var list []*container
	for i := range spec.InitContainers {
		list = append(list, &container{Container: &spec.InitContainers[i], init: true, attempt: -1})
	}
	for i := range spec.Containers {
		list = append(list, &container{Container: &spec.Containers[i], attempt: -1})
	}
	return list
}

// loop is the goroutine of the pod.
func (p *pod) loop() {
	defer close(p.done)
	defer func() {
		for _, c := range p.containers {
			c.letGo()
		}
	}()
	for _, c := range p.containers {
		c.follow()
	}
	p.keepTokens()
	for p.ctx.Err() == nil {
		for _, f := range p.takeWork() {
			f()
		}
		again, more := p.step()
		p.publish()
		if !more {
			p.await(again)
		}
	}
}

// step does what next says, and reports until when there is nothing else to
// do, or that there is more.
func (p *pod) step() (again time.Time, more bool) {
	views := make([]view, len(p.containers))
	for i, c := range p.containers {
		views[i] = c.view()
	}
	todo := next(&p.spec.Spec, views, p.deadline, time.Now())
	for _, i := range todo.start {
		p.containers[i].start(p.starting)
	}
	for _, i := range todo.stop {
		p.containers[i].stop(*p.deadline)
	}
	for _, i := range todo.kill {
		p.containers[i].kill()
	}
	if todo.finished {
		p.stop(time.Now().Add(grace(p.spec)))
	}
	p.stopped = todo.stopped
	if p.unkept {
		if p.keepDeadline(); p.unkept {
			todo.wait(time.Now().Add(retryKeep))
		}
	}
	return todo.again, len(todo.start) > 0 || todo.finished
}

// stop decides that the pod ends, at that time at the latest.
func (p *pod) stop(deadline time.Time) {
	if p.deadline != nil && !deadline.Before(*p.deadline) {
		return
	}
	p.deadline = &deadline
	p.endStarting()
	if p.keepDeadline(); p.unkept {
		klog.FromContext(p.ctx).Info("The end of the pod is not on disk yet")
	}
}

// retryKeep is the time between two tries to put the deadline on the disk.
const retryKeep = time.Second

// keepDeadline puts the deadline on the disk, so that the next kubelet starts nothing
// of the pod before it learns from the API that it is to end. A disk that is full is
// no reason not to stop it: that may be what makes room. The next kubelet then finds
// it in the exits of the containers that ran.
func (p *pod) keepDeadline() {
	err := record.Write(filepath.Join(p.dir, "stop.json"), stopRecord{*p.deadline})
	if p.unkept = err != nil; p.unkept {
		klog.FromContext(p.ctx).V(4).Info("The end of the pod can't be written", "err", err)
	}
}

// requestStop has the pod stopped by its goroutine.
func (p *pod) requestStop(deadline time.Time) {
	p.endStarting()
	p.do(func() { p.stop(deadline) })
}

// do hands the goroutine something to do.
func (p *pod) do(f func()) {
	p.mu.Lock()
	p.work = append(p.work, f)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pod) takeWork() []func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	work := p.work
	p.work = nil
	return work
}

// await waits for work, for a time if it is not zero, or for the end.
func (p *pod) await(until time.Time) {
	var timer <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-p.wake:
	case <-timer:
	case <-p.ctx.Done():
	}
}

// publish makes the state of the pod known if it has changed.
func (p *pod) publish() {
	state := podsync.State{Ref: p.ref, Stopped: p.stopped, Generation: p.spec.Generation, Status: p.status()}
	p.mu.Lock()
	same := apiequality.Semantic.DeepEqual(state, p.state)
	p.state = state
	p.mu.Unlock()
	if !same {
		p.provider.noteChange(p.ref.UID)
	}
}

// published returns the state that was last published, as the caller's own.
func (p *pod) published() podsync.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.state
	state.Status = *state.Status.DeepCopy()
	return state
}

func grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	return time.Duration(max(seconds, 1)) * time.Second
}
