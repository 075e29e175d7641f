// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// A pod is a pod that the Provider holds. Its fields belong to its goroutine, which
// everything else hands functions to, except for those below mu.
//
// Invariant: nothing is decided while stale is true.
// Invariant: after deadline is set, nothing is started.
type pod struct {
	p        *Provider
	ref      podsync.Ref
	dir      string
	accepted time.Time
	desired  *corev1.Pod                 // of the API; never changed, only replaced
	spec     *corev1.Pod                 // desired, with the resources that the pod has been given
	pending  pending                     // why they are others than those of desired
	want     corev1.ResourceRequirements // of the pod as a whole: PodResources of spec
	ctx      context.Context
	end      context.CancelFunc
	done     chan struct{}

	// The Runtime's list.
	stale      bool         // something has happened since
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

	prepare    sync.Mutex     // held while a goroutine makes files of the pod
	memory     *podenv.Memory // what its containers have read
	keptInputs int            // the version of memory on disk; guarded by prepare

	mu    sync.Mutex
	work  []func() // for the goroutine
	wake  chan struct{}
	state podsync.State
}

// load returns the pod in a directory. The caller then calls take, publish and loop.
func (p *Provider) load(dir string) (*pod, error) {
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
		p: p, ref: podsync.RefOf(rec.Pod), desired: rec.Pod, spec: rec.InForce, dir: dir, accepted: rec.Accepted,
		done: make(chan struct{}), wake: make(chan struct{}, 1), stale: true,
		removing: map[ContainerID]bool{}, refreshDue: map[string]time.Time{},
	}
	pod.ctx, pod.end = context.WithCancel(klog.NewContext(p.ctx, klog.LoggerWithValues(klog.FromContext(p.ctx), "pod", klog.KObj(rec.Pod), "uid", rec.Pod.UID)))
	pod.starting, pod.endStarting = context.WithCancel(pod.ctx)
	pod.memory = p.recallInputs(pod.ctx, dir)
	pod.plugins = hasPluginVolumes(rec.Pod)
	var stop stopRecord
	if ok, err = record.Read(filepath.Join(dir, "stop.json"), &stop); err != nil {
		return nil, err
	} else if ok {
		if stop.Deadline.IsZero() {
			stop.Deadline = time.Now().Add(grace(rec.InForce)) // podsync knows better
		}
		pod.deadline = &stop.Deadline
		pod.endStarting()
	}
	if _, err = record.Read(filepath.Join(dir, "past.json"), &pod.past); err != nil {
		return nil, err
	}
	runs, err := runsOf(dir)
	if err != nil {
		return nil, err
	}
	pod.facts.Backoff, pod.facts.Past, pod.facts.Ending = core.Backoff(p.cfg.Backoff), pod.past.Runs, pod.deadline != nil
	pod.setSpec(rec.InForce)
	pod.whole = pod.want
	if pod.wholeKept = rec.Whole != nil; pod.wholeKept {
		pod.whole, pod.grown = *rec.Whole, rec.Whole
	}
	p.room.hold(rec.InForce)
	for _, c := range pod.containers {
		for _, attempt := range slices.Sorted(maps.Keys(runs[c.Name])) {
			c.m.Recall(attempt, runs[c.Name][attempt])
		}
	}
	pod.scheduleRefresh(time.Now())
	return pod, nil
}

// follow makes desired the spec of the pod, except for resources that the node has no
// room for.
func (p *pod) follow(desired *corev1.Pod) error {
	spec, why := p.p.room.update(p.ctx, desired, time.Now())
	if err := p.keep(desired, spec, why); err != nil {
		return err
	}
	if p.p.caps.resizer != nil && !sameResources(p.spec, spec) {
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

// keep writes pod.json.
func (p *pod) keep(desired, spec *corev1.Pod, why pending) error {
	rec := podRecord{Pod: desired, Accepted: p.accepted}
	if why.reason != "" {
		rec.InForce = spec
	}
	if p.p.caps.podResizer != nil && (p.grown != nil || !sameRequirements(p.whole, PodResources(spec))) {
		rec.Whole = &p.whole
	}
	err := record.Write(filepath.Join(p.dir, "pod.json"), rec)
	if err == nil {
		p.wholeKept = rec.Whole != nil
	}
	return err
}

// refollow asks again for the resources of a pod that waits for them, or that has just
// been granted them.
func (p *pod) refollow() {
	if err := p.follow(p.desired); err != nil {
		klog.FromContext(p.ctx).V(4).Info("The resources of the pod can't be written", "err", err)
		p.after(retryKeep, p.refollow)
	}
}

// setSpec makes spec that of the pod: containers that are new in it are added.
func (p *pod) setSpec(spec *corev1.Pod) {
	p.spec, p.want, p.facts.Grace = spec, PodResources(spec), grace(spec)
	for _, s := range containersOf(&spec.Spec) {
		at := slices.IndexFunc(p.containers, func(c *container) bool { return c.Name == s.Name })
		if at < 0 {
			p.containers = append(p.containers, &container{Container: s.Container, kind: s.kind, pod: p, m: core.New(&p.facts, s.kind, s.Container)})
			continue
		}
		c := p.containers[at]
		c.Container = s.Container
		c.apply(core.SpecChanged{Spec: s.Container})
	}
}

// loop is the goroutine of the pod.
func (p *pod) loop() {
	defer close(p.done)
	defer p.end()
	for p.ctx.Err() == nil {
		for _, f := range p.takeWork() {
			f()
		}
		if p.stale {
			if err := p.list(); err != nil {
				if p.ctx.Err() == nil {
					klog.FromContext(p.ctx).Error(err, "The containers of a pod can't be listed")
				}
				p.publish()
				p.await(time.Now().Add(time.Second))
				continue
			}
		}
		again := p.step()
		if f := p.p.checked; f != nil {
			if err := p.check(); err != nil {
				f(err)
			}
		}
		p.publish()
		p.await(again)
	}
}

// list reads the state of the pod from the Runtime.
func (p *pod) list() error {
	ctx, cancel := context.WithTimeout(p.ctx, p.p.cfg.CallTimeout)
	defer cancel()
	runs, sandboxes, err := p.p.listRuntime(ctx, p.ref.UID)
	if err != nil {
		return err
	}
	p.take(runs[p.ref.UID], sandboxes[p.ref.UID])
	return nil
}

// take updates the pod from the Runtime's lists. runs are sorted by attempt.
func (p *pod) take(runs []Container, sandbox *Sandbox) {
	p.stale = false
	p.sandbox = sandbox
	for _, c := range p.containers {
		var own []Container
		for i := range runs {
			if runs[i].ID.Name == c.Name {
				own = append(own, runs[i])
			}
		}
		c.take(own)
	}
	p.resize()
	p.stopped = p.deadline != nil && p.decide().Stopped
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
	case p.tornDown || p.p.caps.sandboxer == nil && !p.plugins:
	case p.sandboxBusy:
		w.Sandbox = core.SandboxBusy
	case p.sandbox != nil && !p.sandbox.Ready:
		w.Sandbox = core.SandboxLost
	case p.p.caps.sandboxer != nil && p.sandbox == nil || p.plugins && !p.mounted:
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
			klog.FromContext(p.ctx).Error(err, "The restart of a pod is not on disk")
			todo.Wait(time.Now().Add(retryKeep))
		} else {
			p.stale = true
			p.do(func() {})
		}
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
	p.deadline, p.facts.Ending = &deadline, true
	p.endStarting()
	p.sandboxDue, p.sandboxFailures = time.Time{}, 0 // a SetUpPod that failed does not delay TearDownPod
	if p.keepDeadline(); p.unkept {
		klog.FromContext(p.ctx).Info("The time of the pod's end is not on disk yet")
	}
}

// retryKeep is the time between two tries to write a record.
const retryKeep = time.Second

// keepDeadline writes the deadline, so that the next Provider starts nothing of the
// pod before podsync calls Stop again. The pod is stopped although the disk is
// full, because that may be what makes room.
func (p *pod) keepDeadline() {
	err := keepStop(p.dir, *p.deadline)
	if p.unkept = err != nil; p.unkept {
		klog.FromContext(p.ctx).V(4).Info("The time of the pod's end can't be written", "err", err)
	}
}

// restart makes all runs history, so that the pod begins again with its first init
// container. After the loss of the sandbox, regular containers whose work is done
// keep their result.
func (p *pod) restart(rule bool) error {
	past := pastRecord{Runs: map[string]int{}, Rule: rule}
	maps.Copy(past.Runs, p.past.Runs)
	for _, c := range p.containers {
		if c.kind != core.Ephemeral && c.m.Attempt() >= 0 && (rule || c.kind != core.Regular || !c.m.Over(&p.spec.Spec)) {
			past.Runs[c.Name] = c.m.Attempt()
		}
	}
	if err := record.Write(filepath.Join(p.dir, "past.json"), past); err != nil {
		return err
	}
	p.past, p.facts.Past = past, past.Runs
	klog.FromContext(p.ctx).V(2).Info("All containers of the pod start again", "rule", rule)
	return nil
}

// setUp mounts the volumes of plugins and makes the sandbox.
func (p *pod) setUp() {
	name, _ := hostnameOf(p.spec, p.p.cfg.DNS.Domain)
	spec := SandboxSpec{Pod: p.spec.DeepCopy(), Hostname: name, DNS: dnsOf(p.spec, p.p.cfg.DNS)}
	ctx, sandboxer := p.starting, p.p.caps.sandboxer
	p.sandboxBusy = true
	p.p.wg.Go(func() {
		err := plugins(p.p.cfg.Volumes).mount(ctx, spec.Pod, p.dir)
		mounted := err == nil
		if mounted && sandboxer != nil {
			if err = p.p.gate.enter(ctx, ticket{created: spec.Pod.CreationTimestamp.Time}); err == nil {
				_, err = sandboxer.SetUpPod(ctx, spec)
				p.p.gate.leave()
			}
		}
		p.do(func() {
			p.sandboxBusy, p.stale = false, true
			p.mounted = p.mounted || mounted
			switch {
			case err == nil:
				p.sandboxFailure, p.sandboxFailures = nil, 0
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
		if p.p.caps.sandboxer != nil {
			if err := p.p.caps.sandboxer.TearDownPod(ctx, p.ref.UID); err != nil {
				return err
			}
		}
		return plugins(p.p.cfg.Volumes).unmount(ctx, spec, p.dir)
	}, func(err error) {
		p.sandboxBusy, p.tearing = false, false
		if p.tornDown = err == nil; err != nil {
			p.sandboxFailed(err, "FailedKillPod")
		}
	})
}

// sandboxFailed puts off the next sandbox call.
func (p *pod) sandboxFailed(err error, reason string) {
	klog.FromContext(p.ctx).Error(err, "A sandbox call failed", "reason", reason)
	p.event(corev1.EventTypeWarning, reason, "Sandboxing", "%v", err)
	p.sandboxDue = time.Now().Add(core.Preparation(p.sandboxFailures))
	p.sandboxFailures++
}

// scheduleRefresh sets when the volumes with data from the API are read next. The
// age of the credentials of an adopted pod is not known; they are as old as the pod.
func (p *pod) scheduleRefresh(now time.Time) {
	for i := range p.spec.Spec.Volumes {
		v := &p.spec.Spec.Volumes[i]
		switch {
		case hasCredentials(v):
			p.refreshDue[v.Name] = now.Add(max(shortestLife(v)*8/10-max(now.Sub(p.accepted), 0), 0))
		case podenv.IsData(v):
			p.refreshDue[v.Name] = now.Add(p.p.cfg.VolumeRefresh)
		}
	}
}

// refresh reads the volumes that are due, one after the other, and returns when the
// next one is.
func (p *pod) refresh(now time.Time) (again time.Time) {
	if p.refreshing || p.deadline != nil {
		return time.Time{}
	}
	name := ""
	for _, n := range slices.Sorted(maps.Keys(p.refreshDue)) {
		if due := p.refreshDue[n]; name == "" || due.Before(again) {
			name, again = n, due
		}
	}
	if name == "" || again.After(now) {
		return again
	}
	at := slices.IndexFunc(p.spec.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	v, spec, ctx := &p.spec.Spec.Volumes[at], p.spec, p.starting
	if hasFields(v) {
		spec = p.labelled()
	}
	p.refreshing = true
	p.p.wg.Go(func() {
		var files map[string]podenv.File
		err := contain(ctx, "Config.Environment", func() (err error) {
			files, err = p.p.cfg.Environment.Recall(spec, p.memory).Volume(ctx, name)
			return err
		})
		if err == nil {
			err = p.replaceData(spec, v, files)
		}
		renew := nextRenewal(files)
		p.do(func() {
			p.refreshing = false
			now := time.Now()
			p.refreshDue[name] = now.Add(p.p.cfg.VolumeRefresh)
			if hasCredentials(v) {
				p.refreshDue[name] = renewal(renew, now, err)
			}
			if err != nil && ctx.Err() == nil {
				klog.FromContext(p.ctx).Error(err, "A volume is not refreshed", "volume", name)
				p.event(corev1.EventTypeWarning, "FailedMount", "Mounting", "MountVolume.SetUp failed for volume %q: %v", name, err)
			}
		})
	})
	return time.Time{}
}

// fillAbsent fills the volumes that the restart of the machine has emptied.
func (p *pod) fillAbsent(ctx context.Context, resolved *podenv.Pod, spec *corev1.Pod) error {
	p.prepare.Lock() // containers of a pod share its volumes
	defer p.prepare.Unlock()
	return fillAbsent(ctx, resolved, spec, p.dir)
}

// replaceData replaces the content of a volume of spec.
func (p *pod) replaceData(spec *corev1.Pod, v *corev1.Volume, files map[string]podenv.File) error {
	p.prepare.Lock()
	defer p.prepare.Unlock()
	p.keepInputs()
	return writeData(dataPath(p.dir, v), files, fsGroup(spec))
}

// keepInputs writes what the containers have read, if it has changed. p.prepare must be held.
// If it can't be written, the containers run anyway: it is for an API server that is away.
func (p *pod) keepInputs() {
	version := p.memory.Version()
	if version == p.keptInputs {
		return
	}
	err := contain(p.ctx, "Config.Sealer", func() error { return keepInputs(p.dir, p.memory, p.p.cfg.Sealer) })
	if err != nil {
		klog.FromContext(p.ctx).Error(err, "What the containers of a pod have read is not on disk")
		return
	}
	p.keptInputs = version
}

// recallInputs returns what the containers of a pod have read in an earlier process. What can't
// be read is read from the API again.
func (p *Provider) recallInputs(ctx context.Context, dir string) *podenv.Memory {
	data, err := os.ReadFile(inputsFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return &podenv.Memory{}
	}
	memory := &podenv.Memory{}
	if err == nil {
		err = contain(ctx, "Config.Sealer", func() (err error) {
			memory, err = p.cfg.Environment.Remember(data, p.cfg.Sealer)
			return err
		})
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "A part of what the containers of a pod had read can't be recalled")
	}
	return memory
}

// lasting returns the context of a start that goes on when the pod ends, for CallTimeout: if a
// runtime is cut off while it starts a container, the container may end as one that failed.
func (p *pod) lasting() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(p.ctx)
	forget := context.AfterFunc(p.starting, func() {
		t := time.AfterFunc(p.p.cfg.CallTimeout, cancel)
		context.AfterFunc(ctx, func() { t.Stop() })
	})
	return ctx, func() { forget(); cancel() }
}

// labelled returns the spec in force with the newest labels and annotations, which change
// without an Update.
func (p *pod) labelled() *corev1.Pod {
	if p.p.cfg.Pod == nil {
		return p.spec
	}
	var newest *corev1.Pod
	_ = contain(p.ctx, "Config.Pod", func() error { newest = p.p.cfg.Pod(p.ref); return nil })
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
	p.p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, p.p.cfg.CallTimeout)
		defer cancel()
		err := f(ctx)
		p.do(func() {
			p.stale = true
			done(err)
		})
	})
}

// after calls f in the pod's goroutine after a while.
func (p *pod) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() { p.do(f) })
}

// retry calls decide again after a while.
func (p *pod) retry(d time.Duration) { p.after(d, func() { p.stale = true }) }

// do hands the goroutine a function.
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

// event records an event about the pod. Only the goroutine of the pod calls it.
func (p *pod) event(kind, reason, action, format string, args ...any) {
	if p.p.cfg.EventRecorder != nil {
		_ = contain(p.ctx, "EventRecorder.Eventf", func() error {
			p.p.cfg.EventRecorder.Eventf(p.spec, nil, kind, reason, action, format, args...)
			return nil
		})
	}
}

// addresses returns the addresses of the pod and the node.
func (p *pod) addresses() podenv.Addresses {
	a := podenv.Addresses{PodIPs: p.p.cfg.HostIPs, HostIPs: p.p.cfg.HostIPs}
	if p.sandbox != nil && len(p.sandbox.IPs) > 0 {
		a.PodIPs = p.sandbox.IPs
	}
	return a
}

// publish makes the state of the pod known if it has changed.
func (p *pod) publish() {
	state := podsync.State{Ref: p.ref, NodeName: p.spec.Spec.NodeName, Stopped: p.stopped, Generation: p.spec.Generation, Status: p.status()}
	if p.resizeStarted && !p.resizeInProgress() {
		p.resizeStarted = false
		p.event(corev1.EventTypeNormal, "ResizeCompleted", "Resizing", "Pod resize completed")
	}
	p.mu.Lock()
	same := apiequality.Semantic.DeepEqual(state, p.state)
	p.state = state
	p.mu.Unlock()
	if state.Stopped {
		p.p.room.leave(p.ctx, p.ref.UID)
	}
	if !same {
		p.p.noteChange(p.ref.UID)
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
