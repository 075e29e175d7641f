// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync"
)

// An Adapter runs the pods of a podsync.Controller with a provider that was written for
// virtual-kubelet. New makes it. It is a podsync.Provider and its Updater, Inspector,
// Releaser and Watcher. Its methods may be called concurrently.
type Adapter struct {
	cfg         Config
	provider    node.PodLifecycleHandler
	notifier    node.PodNotifier // nil if the provider isn't one
	finder      *finder
	environment environment

	// life is the context that the provider may keep. It is done when that of Watch is.
	life context.Context
	end  context.CancelFunc

	begun      sync.Once     // NotifyPods was called
	registered chan struct{} // closed when NotifyPods has returned, or is no longer waited for
	held       *holdings
	node       nodePart
}

var (
	_ podsync.Provider  = (*Adapter)(nil)
	_ podsync.Updater   = (*Adapter)(nil)
	_ podsync.Inspector = (*Adapter)(nil)
	_ podsync.Releaser  = (*Adapter)(nil)
	_ podsync.Watcher   = (*Adapter)(nil)
)

// Relist returns the value for podsync.Config.Relist: a provider that reports no changes
// is asked as often as virtual-kubelet asks it, every five seconds. It returns 0, the
// default, for one that implements NotifyPods.
func (a *Adapter) Relist() time.Duration {
	if a.notifier == nil {
		return 5 * time.Second
	}
	return 0
}

// change begins a call that may change which pods the provider holds. The returned function ends
// it: then the last result of GetPods is outdated.
func (a *Adapter) change(ctx context.Context) (own context.Context, end func()) {
	return a.begin(ctx), func() { a.finder.outdated.Store(true) }
}

// begin registers the callback of the provider, before any other call of it. It waits for NotifyPods, but
// only for so long: some providers run their loop in it.
func (a *Adapter) begin(ctx context.Context) context.Context {
	ctx = callContext(ctx, a.life)
	if a.notifier == nil {
		return ctx
	}
	a.begun.Do(func() {
		if !a.finder.polls.begin(func() { a.register(ctx) }) {
			close(a.registered) // Watch has ended
		}
	})
	select {
	case <-a.registered:
	case <-ctx.Done():
	}
	return ctx
}

// register calls NotifyPods.
func (a *Adapter) register(ctx context.Context) {
	defer close(a.registered)
	_, err := within(ctx, pollPatience, &a.finder.polls, "NotifyPods", podsync.Ref{}, func() (struct{}, error) {
		a.notifier.NotifyPods(ctx, a.held.notified)
		return struct{}{}, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		klog.FromContext(ctx).Info("NotifyPods has not returned, so other methods are called before it has. It must only register the callback, and return",
			"after", pollPatience)
	}
}

// Watch implements podsync.Watcher. It calls NotifyPods and NotifyNodeStatus, if the
// provider has them, and returns when ctx is done. The contexts that the provider has got
// are done then too, and its callbacks have no further effect.
func (a *Adapter) Watch(ctx context.Context, report func(podsync.State)) error {
	defer context.AfterFunc(ctx, a.end)() // the calls in flight end with ctx, not after it
	own := a.begin(ctx)
	a.held.watch(report)
	defer a.held.watch(nil)
	var wg sync.WaitGroup
	if np := a.cfg.NodeProvider; np != nil {
		wg.Go(func() {
			_ = guard(own, "NotifyNodeStatus", podsync.Ref{}, func() error {
				np.NotifyNodeStatus(own, func(node *corev1.Node) { a.nodeNotified(own, node) })
				return nil
			})
		})
	}
	<-ctx.Done()
	a.end()
	wg.Wait()
	a.finder.polls.wait()
	return nil
}

// Start implements podsync.Provider. CreatePod is called only if the provider does not
// hold the pod.
func (a *Adapter) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	ref := podsync.RefOf(pod)
	own, end := a.change(ctx)
	defer end()
	a.held.looking(ref)
	state, err := a.finder.find(own, ref, pod)
	a.held.looked(ref, err)
	if !errors.Is(err, podsync.ErrNotFound) {
		return state, err
	}
	if a.held.fresh(ref) {
		return a.held.state(ref), nil
	}
	prepared, err := a.environment.prepare(ctx, pod)
	if err != nil {
		return podsync.State{}, err
	}
	if !a.held.create(pod) {
		return podsync.State{}, fmt.Errorf("pod %s: %w, which is being deleted", ref, ErrOtherPod)
	}
	a.held.restore(ref, prepared)
	if err := a.create(own, ref, prepared); err != nil {
		a.environment.event(pod, corev1.EventTypeWarning, "ProviderCreateFailed", "CreatePod", err.Error())
		return podsync.State{}, a.cfg.CreateError(pod, err)
	}
	a.environment.event(pod, corev1.EventTypeNormal, "ProviderCreateSuccess", "CreatePod", "Create pod in provider successfully")
	a.held.created(ref)
	state, err = a.finder.find(own, ref, pod)
	if err != nil {
		return a.held.state(ref), nil // its state comes with the next List
	}
	return state, nil
}

// create calls CreatePod. What it has reported before an error, or a panic, does not count.
func (a *Adapter) create(ctx context.Context, ref podsync.Ref, pod *corev1.Pod) error {
	succeeded := false
	defer func() {
		if !succeeded {
			a.held.failed(ref)
		}
	}()
	err := a.provider.CreatePod(ctx, pod)
	succeeded = err == nil
	return err
}

// Update implements podsync.Updater.
func (a *Adapter) Update(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	ref := podsync.RefOf(pod)
	own, end := a.change(ctx)
	defer end()
	prepared, err := a.environment.prepare(ctx, pod)
	if err != nil {
		return podsync.State{}, err
	}
	a.held.handOver(pod)
	a.held.restore(ref, prepared)
	if err := a.provider.UpdatePod(own, prepared); err != nil {
		a.environment.event(pod, corev1.EventTypeWarning, "ProviderUpdateFailed", "UpdatePod", err.Error())
		return podsync.State{}, RejectInvalid(pod, err)
	}
	a.environment.event(pod, corev1.EventTypeNormal, "ProviderUpdateSuccess", "UpdatePod", "Update pod in provider successfully")
	a.held.updated(ref)
	state, err := a.finder.find(own, ref, pod)
	if err != nil {
		return a.held.state(ref), nil
	}
	return state, nil
}

// Stop implements podsync.Provider. DeletePod begins to stop the pod. It has stopped when
// the provider reports a terminal phase, or when the provider no longer holds it, and at the
// latest at the end of [Config.DeleteTimeout]. The grace period is
// DeletionGracePeriodSeconds of the pod that DeletePod gets.
func (a *Adapter) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	own, end := a.change(ctx)
	defer end()
	if isStray(ref) {
		owner, err := a.finder.ownerOf(ctx, ref)
		if err != nil {
			return podsync.State{}, err
		}
		if owner != nil {
			a.held.own(ref, podsync.RefOf(owner))
			return podsync.State{Ref: ref, Stopped: true}, nil // there is no such instance
		}
	}
	state, err := a.finder.find(own, ref, opts.Pod)
	switch {
	case errors.Is(err, podsync.ErrNotFound):
		if !a.held.fresh(ref) {
			return a.held.stopped(ref), nil
		} // it was created, and the provider does not show it yet
	case err != nil && !a.isOurs(ref, err):
		return podsync.State{}, err
	case state.Stopped:
		return state, nil
	}
	doomed := opts.Pod.DeepCopy()
	if doomed == nil {
		doomed = a.held.pod(ref)
	}
	doomed.DeletionGracePeriodSeconds = new(int64(opts.Grace.Seconds()))
	gone, err := a.delete(own, ref, doomed)
	switch {
	case err != nil:
		return podsync.State{}, err
	case gone:
		return a.held.stopped(ref), nil
	}
	state, err = a.finder.find(own, ref, opts.Pod)
	switch {
	case errors.Is(err, podsync.ErrNotFound):
		return a.held.stopped(ref), nil
	case err != nil:
		return a.held.state(ref), nil // it was begun; podsync asks again
	case !state.Stopped && a.held.survives(ref, a.cfg.DeleteTimeout):
		if opts.Pod != nil { // an orphan, which is listed again, has no pod
			a.environment.event(opts.Pod, corev1.EventTypeWarning, "ProviderDeleteIgnored", "DeletePod",
				"DeletePod has succeeded again and again, and the provider still shows the pod as running; it counts as stopped (Config.DeleteTimeout)")
		}
		return a.held.stopped(ref), nil
	}
	return state, nil
}

// isOurs reports whether DeletePod may be called although GetPod could not tell whether the provider holds
// the pod: it was last known to run, and no other pod has its name.
func (a *Adapter) isOurs(ref podsync.Ref, err error) bool {
	unclear, ok := errors.AsType[*unclearError](err)
	return ok && unclear.method == "GetPod" && a.held.isOurs(ref)
}

// delete calls DeletePod. An error after which the provider does not hold the pod is none, and then
// gone is true. "Not found" of DeletePod alone is not enough, because some providers do not find the
// pods of an earlier process; it counts if no other method can tell.
func (a *Adapter) delete(ctx context.Context, ref podsync.Ref, pod *corev1.Pod) (gone bool, _ error) {
	a.held.restore(ref, pod)
	before := pod.DeepCopy()
	if err := a.provider.DeletePod(ctx, pod); err != nil {
		_, found := a.finder.find(ctx, ref, before)
		_, unclear := errors.AsType[*unclearError](found)
		if gone = errors.Is(found, podsync.ErrNotFound) || unclear && a.cfg.NotFound(err); !gone {
			a.environment.event(before, corev1.EventTypeWarning, "ProviderDeleteFailed", "DeletePod", err.Error())
			return false, err
		}
	}
	a.held.deleted(ref, before, pod)
	a.environment.event(before, corev1.EventTypeNormal, "ProviderDeleteSuccess", "DeletePod", "Delete pod in provider successfully")
	return gone, nil
}

// List implements podsync.Provider. It calls GetPods. If the provider does not implement
// NotifyPods, List calls GetPodStatus of each pod that has not ended. Then it calls GetPods
// only once a minute, after another call about a pod, if GetPodStatus has no status of one, or
// if no pod runs.
func (a *Adapter) List(ctx context.Context) ([]podsync.State, error) {
	return a.finder.states(ctx, a.begin(ctx))
}

// Backend returns the backend of a nodeapi.Server. A method that the provider does not
// have is answered with 501 and its name.
func (a *Adapter) Backend() any { return newBackend(a.provider, a.cfg.NodeName) }

// Release implements podsync.Releaser: a pod that ended on its own is held, for its logs,
// until it is deleted.
func (a *Adapter) Release(ctx context.Context, ref podsync.Ref) error {
	own, end := a.change(ctx)
	defer end()
	if a.held.beginRelease(ref) {
		defer a.held.endRelease(ref)
		_, err := a.finder.find(own, ref, nil)
		if err == nil {
			_, err = a.delete(own, ref, a.held.pod(ref))
		}
		if err != nil && !errors.Is(err, podsync.ErrNotFound) {
			return err
		}
	}
	a.held.forget(ref)
	return nil
}

// Inspect implements podsync.Inspector. It does not confirm the loss of a pod while all methods
// return nothing and no error: the backend may be away.
func (a *Adapter) Inspect(ctx context.Context, ref podsync.Ref) (podsync.State, error) {
	state, err := a.finder.find(a.begin(ctx), ref, nil)
	switch {
	case errors.Is(err, podsync.ErrNotFound) && a.held.fresh(ref):
		return a.held.state(ref), nil
	case errors.Is(err, errSilence) && a.held.mayRun(ref):
		return podsync.State{}, fmt.Errorf("pod %s: GetPod, GetPodStatus and GetPods return nothing and no error, as a provider does whose backend is away "+
			"(it is gone if GetPod returns an error that Config.NotFound reports)", ref)
	}
	return state, err
}

// callContext returns a context for a method of the provider: the values are those of the
// call, the end is that of Run. Providers start their loops with the context of a call.
func callContext(call, life context.Context) context.Context {
	return valued{life, context.WithoutCancel(call)}
}

type valued struct {
	context.Context
	values context.Context
}

// Value asks the life first, because package context finds the parent of a child by it.
func (v valued) Value(key any) any {
	if value := v.Context.Value(key); value != nil {
		return value
	}
	return v.values.Value(key)
}
