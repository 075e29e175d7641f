// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

var (
	// ErrAlreadyRun is returned by Run if it was called before.
	ErrAlreadyRun = errors.New("podruntime: already run: a Provider runs once")
	// ErrStopped is returned by calls after Run has returned.
	ErrStopped = errors.New("podruntime: Run has returned")
)

// A Provider runs pods with a [Runtime]. It implements podsync.Provider, Watcher,
// Inspector, Releaser, Admitter and Updater. Make it with New; its methods wait
// until Run has found the pods of the last process.
type Provider struct {
	*node
	dirs store
	once lifecycle.Once

	ctx    context.Context // of Run, set before loaded is closed
	loaded chan struct{}   // closed when pods is complete
	ended  chan struct{}   // closed when Run returns

	mu       sync.Mutex
	closed   bool // no goroutine may be started
	pods     map[types.UID]*pod
	starting map[types.UID]bool   // Start is under way
	strays   map[types.UID]*stray // what is listed of other pods
	changed  []types.UID          // not yet reported by Watch
	wake     chan struct{}
}

var _ interface {
	podsync.Provider
	podsync.Watcher
	podsync.Inspector
	podsync.Releaser
	podsync.Admitter
	podsync.Updater
} = (*Provider)(nil)

// New returns a Provider. The error names every field of cfg that can't be used. It also
// names every method of the Runtime that has the name of an optional method, but another
// signature.
func New(cfg Config) (*Provider, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	var caps capabilities
	cfg.Runtime, caps = guarded(cfg.Runtime)
	p := &Provider{
		node: &node{cfg: cfg, caps: caps, gate: gate{free: cfg.MaxStarts}}, dirs: store{cfg.Root},
		loaded: make(chan struct{}), ended: make(chan struct{}),
		pods: map[types.UID]*pod{}, starting: map[types.UID]bool{}, strays: map[types.UID]*stray{}, wake: make(chan struct{}, 1),
	}
	p.bound = caps.bound != nil && caps.bound.EndsWithProcess()
	p.report, p.reports.groups = p.noteChange, &p.groups
	p.room = newRoom(cfg.Allocatable, caps.resizer != nil, caps.podResizer != nil, func(uid types.UID) {
		if pod := p.find(uid); pod != nil {
			pod.do(pod.refollow)
		}
	})
	return p, nil
}

// Run runs the pods until ctx is done; then it returns nil, and the containers run
// on. It returns an error if Config.Root can't be read, and ErrRootInUse if another
// process runs pods in it. It must run as long as the podsync.Controller that has
// the Provider.
func (p *Provider) Run(ctx context.Context) error {
	if !p.once.Begin() {
		return ErrAlreadyRun
	}
	defer close(p.ended)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.ctx = ctx
	unlock, err := p.dirs.lock(ctx)
	if err != nil {
		return fmt.Errorf("podruntime: Root %s: %w", p.cfg.Root, err)
	}
	defer unlock()
	if err := p.open(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	p.wg.Go(func() { p.relist(ctx) })
	if p.caps.watcher != nil {
		p.wg.Go(func() { p.watchRuntime(ctx) })
	}
	if p.cfg.Evict != nil {
		guard := diskGuard{p.caps.meter, p.cfg.Evict, p.diskPods, &p.panics}
		p.wg.Go(func() { guard.run(ctx) })
	}
	<-ctx.Done()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wg.Wait()
	if p.bound {
		if err := p.dirs.announceEnd(); err != nil {
			klog.FromContext(ctx).Error(err, "The next process will take the end of the containers for a crash")
		}
	}
	return nil
}

// open finds the pods of the last process.
func (p *Provider) open(ctx context.Context) error {
	if err := p.dirs.emptyTrash(); err != nil {
		klog.FromContext(ctx).Error(err, "What a pod has left can't be deleted; the next start tries again")
	}
	dirs, err := p.dirs.open()
	if err != nil {
		return err
	}
	announced := p.bound && p.dirs.announced()
	// All of them or none: a pod left out would be taken for lost.
	var pods []*pod
	for _, dir := range dirs {
		pod, err := p.load(ctx, dir)
		if err != nil {
			return fmt.Errorf("podruntime: pod in %s: %w", dir, err)
		}
		pods = append(pods, pod)
	}
	var listed map[types.UID]listing
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		listed, err = p.listRuntime(call, "")
		cancel()
		if err == nil {
			p.reports.ok(ctx, relisting)
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		p.reports.fail(ctx, relisting, err, "The containers can't be listed")
		sleep(ctx, time.Second)
	}
	for _, pod := range pods {
		p.mu.Lock() // Watch looks pods up before they are loaded, and so does room
		p.pods[pod.ref.UID] = pod
		p.mu.Unlock()
	}
	gone := 0
	for _, pod := range pods {
		if pod.desired != pod.spec {
			pod.refollow()
		}
		before := pod.gone()
		pod.facts.Announced = announced
		if l := listed[pod.ref.UID]; l.err != nil {
			pod.unseen = true // its goroutine lists it
		} else {
			pod.take(l)
		}
		gone += pod.gone() - before
		pod.publish()
	}
	if gone > 0 {
		klog.FromContext(ctx).Info("Containers that ran under the process before are gone", "containers", gone, "announced", announced)
	}
	if err := p.dirs.takeAnnouncement(); err != nil {
		return fmt.Errorf("podruntime: %w", err)
	}
	for _, pod := range pods {
		p.wg.Go(pod.loop)
	}
	close(p.loaded)
	return nil
}

// relist wakes the pods whose containers have changed since the last list, and
// removes what belongs to no pod.
func (p *Provider) relist(ctx context.Context) {
	last := map[types.UID]listing{}
	// The first list is early: it finds the changes before Watch had begun.
	for wait := min(p.cfg.Relist, DefaultRelist); sleep(ctx, wait); wait = p.cfg.Relist {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		next, err := p.listRuntime(call, "")
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				p.reports.fail(ctx, relisting, err, "The containers can't be listed")
			}
			continue
		}
		p.reports.ok(ctx, relisting)
		for uid, l := range next {
			if !l.equal(last[uid]) {
				p.poke(uid)
			}
		}
		for uid := range last {
			if _, ok := next[uid]; !ok {
				p.poke(uid)
			}
		}
		last = next
		p.sweep(ctx, next)
		p.room.retry(ctx) // the allocatable resources may have changed
	}
}

// watchRuntime wakes the pods that the Runtime reports.
func (p *Provider) watchRuntime(ctx context.Context) {
	for {
		// A call that hangs ends sooner, so a Watch of that age works.
		works := time.AfterFunc(callTimeout, func() { p.reports.ok(ctx, watching) })
		err := p.caps.watcher.Watch(ctx, p.poke)
		works.Stop()
		if ctx.Err() != nil {
			return
		}
		p.reports.fail(ctx, watching, err, "The watch of the runtime has ended")
		sleep(ctx, time.Second)
		p.mu.Lock()
		uids := slices.Collect(maps.Keys(p.pods))
		p.mu.Unlock()
		for _, uid := range uids {
			p.poke(uid)
		}
	}
}

// poke makes a pod list its containers.
func (p *Provider) poke(uid types.UID) {
	if pod := p.find(uid); pod != nil {
		pod.do(func() { pod.stale = true })
	}
}

// diskPods returns the pods whose disk usage may be limited.
func (p *Provider) diskPods() (list []diskPod) {
	p.mu.Lock()
	pods := slices.Collect(maps.Values(p.pods))
	p.mu.Unlock()
	for _, pod := range pods {
		if spec := p.room.spec(pod.ref.UID); spec != nil {
			list = append(list, diskPod{pod.ctx, &pod.reports, pod.ref, pod.dir, spec})
		}
	}
	return list
}

// find returns a pod, or nil.
func (p *Provider) find(uid types.UID) *pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

// enter waits until the pods are known.
func (p *Provider) enter(ctx context.Context) error {
	select {
	case <-p.loaded:
	case <-p.ended:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-p.ended:
		return ErrStopped
	default:
		return nil
	}
}

// Start implements podsync.Provider. It returns when the volumes are filled and the
// environment is known to be complete; the containers start after that.
func (p *Provider) Start(ctx context.Context, spec *corev1.Pod) (podsync.State, error) {
	if err := p.enter(ctx); err != nil {
		return podsync.State{}, err
	}
	if pod := p.find(spec.UID); pod != nil {
		return pod.published(), nil
	}
	adopted, err := p.adopt(spec.UID)
	if err != nil {
		return podsync.State{}, err
	}
	defer adopted()
	memory := &podenv.Memory{}
	dir, err := p.dirs.create(spec, time.Now(), func(dir string) error { return p.prepare(ctx, spec, dir, memory) })
	if err != nil {
		return podsync.State{}, err
	}
	pod, err := p.load(p.ctx, dir)
	if err != nil {
		return podsync.State{}, err
	}
	if memory.Version() > 0 { // else the pod was prepared before
		pod.memory, pod.keptInputs = memory, memory.Version()
	}
	pod.publish()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return podsync.State{}, ErrStopped // the next process finds it
	}
	p.pods[spec.UID] = pod
	p.wg.Go(pod.loop)
	return pod.published(), nil
}

// prepare makes the volumes and checks the environment of a pod.
func (p *Provider) prepare(ctx context.Context, spec *corev1.Pod, dir string, memory *podenv.Memory) error {
	if p.caps.podChecker != nil {
		if err := p.caps.podChecker.CheckPod(ctx, spec.DeepCopy()); err != nil {
			return err
		}
	}
	resolved := p.cfg.Environment.Recall(spec, memory)
	errs := []error{makeVolumes(ctx, resolved, spec, dir)}
	addresses := podenv.Addresses{PodIPs: p.cfg.HostIPs, HostIPs: p.cfg.HostIPs}
	for _, c := range containersOf(&spec.Spec) {
		if slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.ValueFrom != nil && v.ValueFrom.FileKeyRef != nil }) {
			continue // an init container writes the file
		}
		_, err := resolved.Container(ctx, c.Name, addresses)
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err != nil && !podenv.CanWait(err) {
		return podsync.Reject("ContainerConfigError", err.Error())
	}
	if err == nil && memory.Version() > 0 {
		err = p.panics.contain(ctx, "Config.Sealer", func() error { return keepInputs(dir, memory, p.cfg.Sealer) })
	}
	return err
}

// Update implements podsync.Updater: ephemeral containers are started, containers
// with another image are started again, and changed resources are applied when the
// node has room for them.
func (p *Provider) Update(ctx context.Context, spec *corev1.Pod) (podsync.State, error) {
	if err := p.enter(ctx); err != nil {
		return podsync.State{}, err
	}
	pod := p.find(spec.UID)
	if pod == nil {
		return podsync.State{}, fmt.Errorf("%v: %w", podsync.RefOf(spec), podsync.ErrNotFound)
	}
	spec = spec.DeepCopy()
	done := make(chan error, 1)
	pod.do(func() {
		err := pod.follow(spec)
		if err == nil {
			pod.publish()
		}
		done <- err
	})
	select {
	case err := <-done:
		return pod.published(), err
	case <-pod.done:
		return podsync.State{}, ErrStopped
	case <-ctx.Done():
		return podsync.State{}, ctx.Err()
	}
}

// Stop implements podsync.Provider. It returns at once; Watch reports the end.
func (p *Provider) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	if err := p.enter(ctx); err != nil {
		return podsync.State{}, err
	}
	pod := p.find(ref.UID)
	if pod == nil {
		p.room.leave(ctx, ref.UID) // it was admitted, perhaps, and never started
		if err := p.end(ctx, ref.UID, opts.Grace); err != nil {
			return podsync.State{}, fmt.Errorf("%v is not in Root: %w", ref, err)
		}
		if p.dirs.has(ref.UID) { // of a Start that failed after it: the next process would run the pod
			remove, err := p.dirs.discard(ref.UID)
			if err != nil {
				return podsync.State{}, err
			}
			_ = remove() // the next process tries again
		}
		return podsync.State{Ref: ref, Stopped: true}, nil
	}
	deadline := time.Now().Add(opts.Grace)
	pod.endStarting()
	pod.do(func() { pod.stop(deadline) })
	return pod.published(), nil
}

// List implements podsync.Provider.
func (p *Provider) List(ctx context.Context) ([]podsync.State, error) {
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	pods := slices.Collect(maps.Values(p.pods))
	p.mu.Unlock()
	var states []podsync.State
	for _, pod := range pods {
		states = append(states, pod.published())
	}
	return states, nil
}

// Inspect implements podsync.Inspector.
func (p *Provider) Inspect(ctx context.Context, ref podsync.Ref) (podsync.State, error) {
	if err := p.enter(ctx); err != nil {
		return podsync.State{}, err
	}
	pod := p.find(ref.UID)
	if pod == nil {
		return podsync.State{}, fmt.Errorf("%v: %w", ref, podsync.ErrNotFound)
	}
	return pod.published(), nil
}

// Release implements podsync.Releaser: logs, exit codes and volumes are deleted.
func (p *Provider) Release(ctx context.Context, ref podsync.Ref) error {
	if err := p.enter(ctx); err != nil {
		return err
	}
	pod := p.find(ref.UID)
	if pod == nil {
		return nil
	}
	if !pod.published().Stopped {
		return fmt.Errorf("%v has not stopped", ref)
	}
	pod.end()
	<-pod.done
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	l, err := p.listPod(ctx, ref.UID)
	if err != nil {
		return err
	}
	if err := p.forget(ctx, ref.UID, l.runs); err != nil {
		return err
	}
	remove, err := p.dirs.discard(ref.UID)
	if err != nil {
		return err
	}
	if err := remove(); err != nil {
		klog.FromContext(ctx).Error(err, "The files of a pod can't be deleted; the next start tries again", "pod", ref)
		pod.event(corev1.EventTypeWarning, "FailedCleanup", "Release", "Some files of the pod can't be deleted: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, ref.UID)
	return nil
}

// Watch implements podsync.Watcher.
func (p *Provider) Watch(ctx context.Context, report func(podsync.State)) error {
	for {
		p.mu.Lock()
		changed := p.changed
		p.changed = nil
		p.mu.Unlock()
		for _, uid := range changed {
			if pod := p.find(uid); pod != nil {
				report(pod.published())
			}
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// noteChange makes Watch report a pod.
func (p *Provider) noteChange(uid types.UID) {
	p.mu.Lock()
	if !slices.Contains(p.changed, uid) {
		p.changed = append(p.changed, uid)
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// A stray is what the Runtime has of a pod that is not in Root. Provider.mu guards all of it but
// reports.
//
// Invariant: while removing is true, the Provider has no such pod, and no Start of it is under way.
type stray struct {
	reports  reports
	due      time.Time // the earliest time of the next try to remove it
	failures int       // in a row
	removing bool
}

// strayDelay is the time for which containers must have belonged to no pod before
// they are removed. A pod whose directory was lost is started again by podsync in
// that time, and adopts them.
const strayDelay = time.Minute

// sweep removes what the Runtime lists of pods that are not in Root. Each of them has a goroutine
// of its own, because a call about one may hang.
func (p *Provider) sweep(ctx context.Context, listed map[types.UID]listing) {
	var gone []*stray
	defer func() {
		for _, s := range gone {
			s.reports.ok(ctx, straying)
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	now, owned := time.Now(), func(uid types.UID) bool { return p.pods[uid] != nil || p.starting[uid] }
	for uid, s := range p.strays {
		if _, ok := listed[uid]; !s.removing && (!ok || owned(uid)) {
			delete(p.strays, uid)
			gone = append(gone, s)
		}
	}
	for uid, l := range listed {
		switch s := p.strays[uid]; {
		case owned(uid):
		case s == nil:
			p.strays[uid] = &stray{reports: reports{groups: &p.groups}, due: now.Add(strayDelay)}
		case l.err == nil && !s.removing && !now.Before(s.due):
			s.removing = true
			p.wg.Go(func() { p.removeStray(ctx, uid, s, l.runs) })
		}
	}
}

// removeStray asks the containers of a stray to end, or removes what is left if none runs.
func (p *Provider) removeStray(ctx context.Context, uid types.UID, s *stray, runs []Container) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	running, err := p.stopAll(call, runs, 0)
	if err == nil && !running {
		err = p.forget(call, uid, runs)
	}
	if err != nil && ctx.Err() == nil { // sweep reports the success, when nothing is left
		s.reports.fail(ctx, straying, err, "Containers without a pod are still there", "uid", uid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := core.KillRetry
	if err == nil {
		s.failures = 0
	} else {
		wait = core.Preparation(s.failures)
		s.failures++
	}
	s.removing, s.due = false, time.Now().Add(wait)
}

// adopt keeps what the Runtime has of a pod while the pod is started, until done is called. It
// returns an error if that is being removed already.
func (p *Provider) adopt(uid types.UID) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.strays[uid]; s != nil && s.removing {
		return nil, errors.New("podruntime: what the runtime had of the pod is being removed")
	}
	p.starting[uid] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.starting, uid)
	}, nil
}

// end ends and removes what the Runtime has of a pod that is not in Root, because the directory
// was lost. It returns an error as long as a container runs.
func (p *Provider) end(ctx context.Context, uid types.UID, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	l, err := p.listPod(ctx, uid)
	if err != nil || len(l.runs) == 0 && l.sandbox == nil {
		return err
	}
	if running, err := p.stopAll(ctx, l.runs, grace); err != nil {
		return err
	} else if running {
		return errors.New("containers of the pod still run")
	}
	return p.forget(ctx, uid, l.runs)
}

// stopAll asks all containers to end, and reports whether one was listed as running. A later
// deadline changes nothing.
func (p *Provider) stopAll(ctx context.Context, runs []Container, grace time.Duration) (running bool, err error) {
	var errs []error
	for _, run := range runs {
		if run.State == ContainerRunning {
			running = true
			errs = append(errs, p.cfg.Runtime.Stop(ctx, run.ID, StopOptions{Deadline: time.Now().Add(max(grace, core.MinWindow))}))
		}
	}
	return running, errors.Join(errs...)
}

// forget removes everything that the Runtime has of a pod that has stopped.
func (p *Provider) forget(ctx context.Context, uid types.UID, runs []Container) error {
	var errs []error
	for _, run := range runs {
		errs = append(errs, p.cfg.Runtime.Remove(ctx, run.ID))
	}
	if s := p.caps.sandboxer; s != nil && errors.Join(errs...) == nil {
		errs = append(errs, s.TearDownPod(ctx, uid), s.RemovePod(ctx, uid))
	}
	return errors.Join(errs...)
}
