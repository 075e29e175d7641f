// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// load returns the pod in a directory. The caller then calls take, publish and loop. The pod
// ends with ctx.
func (n *node) load(ctx context.Context, dir string) (*pod, error) {
	var rec podRecord
	ok, err := record.Read(filepath.Join(dir, "pod.json"), &rec)
	if err != nil {
		return nil, err
	}
	if !ok || rec.Pod == nil {
		return nil, fmt.Errorf("no pod.json")
	}
	if rec.InForce == nil {
		rec.InForce = rec.Pod
	}
	pod := &pod{
		inbox: newInbox(), node: n, ref: podsync.RefOf(rec.Pod), desired: rec.Pod, spec: rec.InForce, dir: dir, accepted: rec.Accepted,
		done: make(chan struct{}), stale: true,
		removing: map[ContainerID]bool{}, refreshDue: map[string]time.Time{}, unfresh: map[string]bool{},
		reports: reports{groups: &n.groups},
	}
	pod.ctx, pod.end = context.WithCancel(klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(rec.Pod), "uid", rec.Pod.UID)))
	pod.starting, pod.endStarting = context.WithCancel(pod.ctx)
	pod.memory = n.recallInputs(pod.ctx, dir)
	pod.plugins = hasPluginVolumes(rec.Pod)
	var stop stopRecord
	if ok, err = record.Read(filepath.Join(dir, "stop.json"), &stop); err != nil {
		return nil, err
	} else if ok {
		if stop.Deadline.IsZero() {
			stop.Deadline = time.Now().Add(grace(rec.InForce)) // podsync knows better
		}
		deadline := stop.due(time.Now())
		pod.deadline = &deadline
		pod.endStarting()
	}
	if _, err = record.Read(filepath.Join(dir, "past.json"), &pod.past); err != nil {
		return nil, err
	}
	runs, err := runsOf(dir)
	if err != nil {
		return nil, err
	}
	pod.facts.Backoff, pod.facts.Ending = core.Backoff(n.cfg.Backoff), pod.deadline != nil
	pod.facts.Past, pod.facts.Kept = pod.past.Runs, pod.past.Kept
	pod.setSpec(rec.InForce)
	pod.whole = pod.want
	if pod.wholeKept = rec.Whole != nil; pod.wholeKept {
		pod.whole, pod.grown = *rec.Whole, rec.Whole
	}
	n.room.hold(rec.InForce)
	for _, c := range pod.containers {
		attempts := slices.Sorted(maps.Keys(runs[c.Name]))
		for len(attempts) > 2 { // of runs before the previous one
			_ = os.Remove(runFile(dir, c.Name, attempts[0])) // else the next process tries again
			attempts = attempts[1:]
		}
		for _, attempt := range attempts {
			run := runs[c.Name][attempt]
			// A clock that has been set back since is no reason to wait for longer.
			if last := time.Now().Add(max(c.graceAfter(nil), c.graceAfter(c.StartupProbe), c.graceAfter(c.LivenessProbe))); run.EndBy.After(last) {
				run.EndBy = last
			}
			c.m.Recall(attempt, run)
			c.kept = kept{attempt, run}
		}
	}
	pod.scheduleRefresh(time.Now())
	return pod, nil
}

// follow makes desired the spec of the pod, except for resources that the node has no
// room for.
func (p *pod) follow(desired *corev1.Pod) error {
	spec, why := p.node.room.update(p.ctx, desired, time.Now())
	if err := p.keep(desired, spec, why); err != nil {
		return err
	}
	if p.node.caps.resizer != nil && !sameResources(p.spec, spec) {
		p.event(corev1.EventTypeNormal, "ResizeStarted", "Resizing", "Pod resize started")
		p.resizeStarted, p.resizeFailure, p.resizeDue = true, "", time.Time{}
	}
	if why.reason != "" && (why.reason != p.pending.reason || desired.Generation != p.desired.Generation) {
		p.event(corev1.EventTypeWarning, "Resize"+why.reason, "Resizing", "%s", why.message)
	}
	p.desired, p.pending, p.stale = desired, why, true
	p.setSpec(spec)
	return nil
}

// refollow asks again for the resources of a pod that waits for them, or that has just
// been granted them.
func (p *pod) refollow() {
	if err := p.follow(p.desired); err != nil {
		klog.FromContext(p.ctx).V(4).Info("The resources of the pod can't be written", "err", err)
		p.after(retryKeep, p.refollow)
	}
}

// loop is the goroutine of the pod.
func (p *pod) loop() {
	defer close(p.done)
	defer p.end()
	defer p.leave((*apierr.Group).Retire)
	for p.ctx.Err() == nil {
		for _, f := range p.takeWork() {
			f()
		}
		if p.stale {
			if err := p.list(); err != nil {
				if p.ctx.Err() == nil {
					p.reports.fail(p.ctx, relisting, err, "The containers can't be listed")
				}
				p.publish()
				p.await(p.ctx, time.Now().Add(time.Second))
				continue
			}
		}
		again := p.step()
		if f := p.node.checked; f != nil {
			if err := p.check(); err != nil {
				f(err)
			}
		}
		p.publish()
		p.await(p.ctx, again)
	}
}

// list reads the state of the pod from the Runtime.
func (p *pod) list() error {
	ctx, cancel := context.WithTimeout(p.ctx, callTimeout)
	defer cancel()
	l, err := p.node.listPod(ctx, p.ref.UID)
	if err != nil {
		return err
	}
	p.reports.ok(p.ctx, relisting)
	p.take(l)
	return nil
}

// take updates the pod from what the Runtime lists of it.
func (p *pod) take(l listing) {
	p.stale, p.unseen = false, false
	p.sandbox = l.sandbox
	own := map[string][]Container{}
	for _, run := range l.runs {
		own[run.ID.Name] = append(own[run.ID.Name], run)
	}
	for _, c := range p.containers {
		c.take(own[c.Name])
	}
	p.resize()
	p.stopped = p.deadline != nil && p.decide().Stopped
}

// gone counts the containers whose newest run was last seen running and is no longer listed.
func (p *pod) gone() (n int) {
	for _, c := range p.containers {
		if c.m.Gone() {
			n++
		}
	}
	return n
}

// decide returns the actions to take now.
func (p *pod) decide() core.Plan { return core.Decide(&p.spec.Spec, p.world(), time.Now()) }

// world returns the input of decide.
func (p *pod) world() core.World {
	w := core.World{Deadline: p.deadline, SandboxDue: p.sandboxDue}
	for _, c := range p.containers {
		w.Containers = append(w.Containers, c.m)
	}
	switch {
	case p.tornDown || p.node.caps.sandboxer == nil && !p.plugins:
	case p.sandboxBusy:
		w.Sandbox = core.SandboxBusy
	case p.sandbox != nil && !p.sandbox.Ready:
		w.Sandbox = core.SandboxLost
	case p.node.caps.sandboxer != nil && p.sandbox == nil || p.plugins && !p.mounted:
		w.Sandbox = core.SandboxUnset
	default:
		w.Sandbox = core.SandboxReady
	}
	return w
}

// step takes the actions that decide returns, and reports when to call it again.
func (p *pod) step() (again time.Time) {
	todo := p.decide()
	p.restarting = todo.Restarting && !todo.Restart
	if todo.Finished {
		p.stop(time.Now().Add(grace(p.spec)))
		todo = p.decide()
	}
	if todo.Restart {
		if err := p.restart(todo.Restarting); err != nil {
			p.reports.fail(p.ctx, recording, err, "The restart of a pod is not on disk")
			todo.Wait(time.Now().Add(retryKeep))
		} else {
			p.reports.ok(p.ctx, recording)
			p.stale = true
			p.do(func() {})
		}
	}
	if p.resizing && p.node.caps.podResizer != nil {
		todo.Start = nil // the pod may shrink below what they would get; the end of the resize decides again
	}
	for _, i := range todo.Start {
		p.containers[i].start()
	}
	for _, h := range todo.Hook {
		p.containers[h.Container].callPreStop(h.By)
	}
	for _, s := range todo.Stop {
		p.containers[s.Container].stop(s.By, todo.Reset)
	}
	if len(todo.Hook)+len(todo.Stop) > 0 { // decide has not seen their deadlines
		p.do(func() {})
	}
	if todo.SetUp {
		p.setUp()
	}
	if todo.TearDown {
		p.tearDown()
	}
	p.stopped = todo.Stopped
	for _, c := range p.containers {
		c.prune()
	}
	if p.unkept {
		if p.keepDeadline(); p.unkept {
			todo.Wait(time.Now().Add(retryKeep))
		}
	}
	if due := p.refresh(time.Now()); !due.IsZero() {
		todo.Wait(due)
	}
	return todo.Again
}

// stop decides that the pod ends, at deadline at the latest.
func (p *pod) stop(deadline time.Time) {
	if p.deadline != nil && !deadline.Before(*p.deadline) {
		return
	}
	if p.deadline == nil {
		p.leave((*apierr.Group).Leave) // no volume is refreshed any longer, for example
	}
	p.deadline, p.facts.Ending = &deadline, true
	p.endStarting()
	p.sandboxDue, p.sandboxFailures = time.Time{}, 0 // a SetUpPod that failed does not delay TearDownPod
	p.keepDeadline()
}

// retryKeep is the time between two tries to write a record.
const retryKeep = time.Second

// keepDeadline writes the deadline, so that the next Provider starts nothing of the
// pod before podsync calls Stop again. The pod is stopped although the disk is
// full, because that may be what makes room.
func (p *pod) keepDeadline() {
	err := keepStop(p.dir, *p.deadline)
	if p.unkept = err != nil; p.unkept {
		p.reports.fail(p.ctx, recording, err, "The time of the pod's end is not on disk yet")
		return
	}
	p.reports.ok(p.ctx, recording)
}

// restart makes all runs history, so that the pod begins again with its first init
// container. After the loss of the sandbox, regular containers whose work is done
// keep their result.
func (p *pod) restart(rule bool) error {
	past := pastRecord{Runs: map[string]int{}, Kept: map[string]int{}, Rule: rule}
	maps.Copy(past.Runs, p.past.Runs)
	for _, c := range p.containers {
		switch {
		case c.kind == core.Ephemeral || c.m.Attempt() < 0:
		case !rule && c.kind == core.Regular && c.m.Over(&p.spec.Spec):
			past.Kept[c.Name] = c.m.Attempt()
		default:
			past.Runs[c.Name] = c.m.Attempt()
		}
	}
	if err := record.Write(filepath.Join(p.dir, "past.json"), past); err != nil {
		return err
	}
	p.past, p.facts.Past, p.facts.Kept = past, past.Runs, past.Kept
	klog.FromContext(p.ctx).V(2).Info("All containers of the pod start again", "rule", rule)
	return nil
}

// publish makes the state of the pod known if it has changed.
func (p *pod) publish() {
	state := podsync.State{Ref: p.ref, NodeName: p.spec.Spec.NodeName, Stopped: p.stopped, Generation: p.spec.Generation}
	if !p.unseen { // else the API keeps what an earlier process has seen
		state.Status = p.status()
	}
	if p.resizeStarted && !p.resizeInProgress() {
		p.resizeStarted = false
		p.event(corev1.EventTypeNormal, "ResizeCompleted", "Resizing", "Pod resize completed")
	}
	p.mu.Lock()
	same, ended := apiequality.Semantic.DeepEqual(state, p.state), state.Stopped && !p.state.Stopped
	p.state = state
	p.mu.Unlock()
	if ended {
		p.leave((*apierr.Group).Leave)
	}
	if state.Stopped {
		p.node.room.leave(p.ctx, p.ref.UID)
	}
	if !same {
		p.node.report(p.ref.UID)
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

// check returns the invariants of the pod and its containers that do not hold, as sentences, or
// nil. Tests call it after each step of each pod; a Provider does not.
func (p *pod) check() error {
	var broken []string
	is := func(ok bool, format string, args ...any) {
		if !ok {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	is(p.deadline == nil || p.starting.Err() != nil, "a pod that is being stopped starts nothing")
	is(!p.stopped || p.deadline != nil, "a pod has stopped only if it was being stopped")
	is(!p.tornDown || p.deadline != nil, "only a pod that is being stopped is torn down")
	is(!p.tearing || p.sandboxBusy, "a TearDownPod under way is a sandbox call under way")
	is(!p.stopped || !p.sandboxBusy, "a pod that has stopped has no sandbox call under way")
	is((p.sandboxFailures > 0) || p.sandboxFailure == nil || p.deadline != nil, "a sandbox failure is counted")
	for _, c := range p.containers {
		is(!p.stopped || !c.m.Starting() && !c.m.Listed(core.Running), "%s: nothing of a pod that has stopped runs", c.Name)
		is(c.watch == nil || c.m.Listed(core.Running) && c.watch.attempt == c.m.Attempt(), "%s: only the run that is listed as running is watched", c.Name)
		if err := c.m.Check(); err != nil {
			broken = append(broken, c.Name+": "+err.Error())
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
}
