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
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
	"github.com/kubewright/kubewright/podsync/podstatus"
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
	vanished   bool         // neither a sandbox nor a container is listed
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
	launches    gate       // of its containers
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
		reports: reports{groups: &n.groups}, launches: gate{free: maxLaunches},
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
			if !run.EndBy.IsZero() {
				run.EndBy = within(run.EndBy, time.Now(), max(c.graceAfter(nil), c.graceAfter(c.StartupProbe), c.graceAfter(c.LivenessProbe)))
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
	p.sandbox, p.vanished = l.sandbox, l.sandbox == nil && len(l.runs) == 0
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
	case p.node.caps.sandboxer != nil && p.vanished && !p.node.bound && p.spec.Spec.RestartPolicy != corev1.RestartPolicyNever:
		// What has run in the sandbox says that there was one. A pod that is never restarted keeps the
		// results of its containers instead.
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
		case c.kind == core.Ephemeral || c.m.Attempt < 0:
		case !rule && c.kind == core.Regular && c.m.Over(&p.spec.Spec):
			past.Kept[c.Name] = c.m.Attempt
		default:
			if last := c.m.LastBegun(); last >= 0 {
				past.Runs[c.Name] = last
			}
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
		is(!p.stopped || !c.m.Starting && !c.m.Listed(core.Running), "%s: nothing of a pod that has stopped runs", c.Name)
		is(c.watch == nil || c.m.Listed(core.Running) && c.watch.attempt == c.m.Attempt, "%s: only the run that is listed as running is watched", c.Name)
		if err := c.m.Check(); err != nil {
			broken = append(broken, c.Name+": "+err.Error())
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
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

// labelled returns a spec of the pod with the newest labels and annotations, which change
// without an Update.
func (p *pod) labelled(spec *corev1.Pod) *corev1.Pod {
	if p.node.cfg.Pod == nil {
		return spec
	}
	var newest *corev1.Pod
	_ = p.node.panics.contain(p.ctx, "Config.Pod", func() error { newest = p.node.cfg.Pod(p.ref); return nil })
	if newest == nil || newest.UID != spec.UID || maps.Equal(newest.Labels, spec.Labels) && maps.Equal(newest.Annotations, spec.Annotations) {
		return spec
	}
	spec = spec.DeepCopy()
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
		a.PodIPs = onePerFamily(p.sandbox.IPs)
	case p.sandbox.Ready || p.spec.Spec.HostNetwork:
		a.PodIPs = a.HostIPs
	}
	return a
}

// hasSandbox reports whether containers of the pod can run.
func (p *pod) hasSandbox() bool {
	return p.node.caps.sandboxer == nil || p.sandbox != nil && p.sandbox.Ready && !p.sandboxBusy && !p.tornDown
}

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

// A spec is a container of a pod with its kind.
type spec struct {
	*corev1.Container
	kind core.Kind
}

// containersOf returns the containers of a pod in the order of decide.
func containersOf(s *corev1.PodSpec) (list []spec) {
	for i := range s.InitContainers {
		k := core.Init
		if podstatus.IsSidecar(&s.InitContainers[i]) {
			k = core.Sidecar
		}
		list = append(list, spec{&s.InitContainers[i], k})
	}
	for i := range s.Containers {
		list = append(list, spec{&s.Containers[i], core.Regular})
	}
	for i := range s.EphemeralContainers {
		list = append(list, spec{(*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon), core.Ephemeral})
	}
	return list
}

func grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	return max(limited(seconds), time.Second)
}

// longest limits durations to 73 years, as podsync does.
const longest time.Duration = 1 << 61

// limited returns n seconds, and at most longest. The API does not limit grace periods: the
// largest integer often stands for no limit, and would become a negative time.
func limited(n int64) time.Duration {
	return time.Duration(min(n, int64(longest/time.Second))) * time.Second
}

// An inbox has the functions that the goroutine of a pod calls next, in their order.
type inbox struct {
	mu   sync.Mutex
	work []func()
	wake chan struct{}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// after calls f in the goroutine after a while.
func (i *inbox) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() { i.do(f) })
}

// do hands the goroutine a function, from any goroutine.
func (i *inbox) do(f func()) {
	i.mu.Lock()
	i.work = append(i.work, f)
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) takeWork() []func() {
	i.mu.Lock()
	defer i.mu.Unlock()
	work := i.work
	i.work = nil
	return work
}

// await waits for work, for a time if it is not zero, or for the end of ctx.
func (i *inbox) await(ctx context.Context, until time.Time) {
	var timer <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-i.wake:
	case <-timer:
	case <-ctx.Done():
	}
}
