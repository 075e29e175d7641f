// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// LifecycleHandler is the part of a virtual-kubelet provider that runs pods,
// node.PodLifecycleHandler there: the methods have the same names and types, so
// a provider written for virtual-kubelet satisfies it as it is.
type LifecycleHandler interface {
	CreatePod(ctx context.Context, pod *corev1.Pod) error
	UpdatePod(ctx context.Context, pod *corev1.Pod) error
	DeletePod(ctx context.Context, pod *corev1.Pod) error
	GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error)
	GetPods(ctx context.Context) ([]*corev1.Pod, error)
}

// Notifier is node.PodNotifier of virtual-kubelet: a provider that reports changes
// on its own.
type Notifier interface {
	// NotifyPods stores the callback and returns.
	NotifyPods(ctx context.Context, notify func(*corev1.Pod))
}

// Adapt makes a podsync.Provider of a provider for virtual-kubelet. The result
// is a podsync.Watcher if handler is a Notifier.
//
// Such a provider identifies pods by namespace and name. The adapter compares UIDs,
// so that it never confuses two pods of one name; the provider must therefore return
// pods with the UID that CreatePod got.
//
// prepare returns the pod that CreatePod and UpdatePod get, such as
// [Environment.Resolve]. It is optional.
func Adapt(handler LifecycleHandler, prepare func(context.Context, *corev1.Pod) (*corev1.Pod, error)) podsync.Provider {
	if prepare == nil {
		prepare = func(_ context.Context, pod *corev1.Pod) (*corev1.Pod, error) { return pod, nil }
	}
	a := &adapter{handler: handler, prepare: prepare, ended: make(map[types.UID]podsync.State)}
	if notifier, ok := handler.(Notifier); ok {
		return &notifyingAdapter{adapter: a, notifier: notifier}
	}
	return a
}

type adapter struct {
	handler LifecycleHandler
	prepare func(context.Context, *corev1.Pod) (*corev1.Pod, error)

	// ended holds the last state of pods that have stopped. Providers forget a pod
	// in DeletePod and report its exit codes through the callback only, so the
	// states are kept here until podsync no longer needs them.
	mu    sync.Mutex
	ended map[types.UID]podsync.State
}

// keep stores a state that the provider has reported, if it is final.
func (a *adapter) keep(state podsync.State) {
	if state.Stopped {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ended[state.UID] = private(state)
	}
}

// private returns a deep copy, because the receiver of a State may change it.
func private(state podsync.State) podsync.State {
	state.Status = *state.Status.DeepCopy()
	return state
}

// stopped returns the state of a pod that the provider does not hold.
func (a *adapter) stopped(ref podsync.Ref) podsync.State {
	a.mu.Lock()
	defer a.mu.Unlock()
	if state, ok := a.ended[ref.UID]; ok {
		return private(state)
	}
	return podsync.State{Ref: ref, Stopped: true}
}

// A changed signature must not hide a capability from podsync.
var (
	_ podsync.Updater   = (*adapter)(nil)
	_ podsync.Inspector = (*adapter)(nil)
	_ podsync.Releaser  = (*adapter)(nil)
	_ podsync.Watcher   = (*notifyingAdapter)(nil)
)

// Start implements podsync.Provider. CreatePod of virtual-kubelet is not
// idempotent, so the pod is looked up first.
func (a *adapter) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	held, err := a.find(ctx, podsync.RefOf(pod))
	switch {
	case err == nil:
		return stateOf(held), nil
	case errors.Is(err, errOtherPod):
		return podsync.State{}, err // tried again until its place is free
	case !errors.Is(err, podsync.ErrNotFound):
		return podsync.State{}, err
	}
	prepared, err := a.prepare(ctx, pod)
	if err != nil {
		return podsync.State{}, err
	}
	if err := a.handler.CreatePod(ctx, prepared); err != nil {
		return podsync.State{}, err
	}
	held, err = a.find(ctx, podsync.RefOf(pod))
	if err != nil {
		// It was created; its state comes with the next List.
		return podsync.State{Ref: podsync.RefOf(pod)}, nil
	}
	return stateOf(held), nil
}

// Update implements podsync.Updater.
func (a *adapter) Update(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	prepared, err := a.prepare(ctx, pod)
	if err != nil {
		return podsync.State{}, err
	}
	if err := a.handler.UpdatePod(ctx, prepared); err != nil {
		return podsync.State{}, err
	}
	return a.Inspect(ctx, podsync.RefOf(pod))
}

// Stop implements podsync.Provider. DeletePod of virtual-kubelet begins to stop
// the pod; that it has stopped is known when the provider reports all of its
// containers terminated, or no longer holds it.
func (a *adapter) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	held, err := a.find(ctx, ref)
	if errors.Is(err, podsync.ErrNotFound) || errors.Is(err, errOtherPod) {
		return a.stopped(ref), nil
	}
	if err != nil {
		return podsync.State{}, err
	}
	if state := stateOf(held); state.Stopped {
		return state, nil
	}
	doomed := held.DeepCopy()
	if opts.Pod != nil {
		doomed = opts.Pod
	}
	// The only way such a provider learns of the grace period.
	seconds := int64(opts.Grace.Seconds())
	doomed.DeletionGracePeriodSeconds = &seconds
	if err := a.handler.DeletePod(ctx, doomed); err != nil && !isNotFound(err) {
		return podsync.State{}, err
	}
	held, err = a.find(ctx, ref)
	switch {
	case errors.Is(err, podsync.ErrNotFound), errors.Is(err, errOtherPod):
		state := a.stopped(ref)
		a.keep(state)
		return state, nil
	case err != nil:
		return podsync.State{}, err
	}
	return stateOf(held), nil
}

// Release implements podsync.Releaser: a pod that ended on its own is still held
// until it is deleted.
func (a *adapter) Release(ctx context.Context, ref podsync.Ref) error {
	held, err := a.find(ctx, ref)
	switch {
	case err == nil:
		if err := a.handler.DeletePod(ctx, held.DeepCopy()); err != nil && !isNotFound(err) {
			return err
		}
	case !errors.Is(err, podsync.ErrNotFound) && !errors.Is(err, errOtherPod):
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ended, ref.UID)
	return nil
}

// Inspect implements podsync.Inspector.
func (a *adapter) Inspect(ctx context.Context, ref podsync.Ref) (podsync.State, error) {
	held, err := a.find(ctx, ref)
	if errors.Is(err, errOtherPod) {
		return podsync.State{}, podsync.ErrNotFound
	}
	if err != nil {
		return podsync.State{}, err
	}
	return stateOf(held), nil
}

// List implements podsync.Provider.
func (a *adapter) List(ctx context.Context) ([]podsync.State, error) {
	pods, err := a.handler.GetPods(ctx)
	if err != nil {
		return nil, err
	}
	states := make([]podsync.State, 0, len(pods))
	held := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		if pod != nil {
			states = append(states, stateOf(pod))
			held[pod.UID] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, state := range a.ended {
		if !held[uid] {
			states = append(states, private(state))
		}
	}
	return states, nil
}

// errOtherPod says that the provider holds another pod of the same name.
var errOtherPod = errors.New("the provider holds another pod of this name")

// find returns the pod of ref. The error wraps podsync.ErrNotFound if the provider
// holds no pod of this name, and errOtherPod if it holds another pod of this name.
func (a *adapter) find(ctx context.Context, ref podsync.Ref) (*corev1.Pod, error) {
	pod, err := a.handler.GetPod(ctx, ref.Namespace, ref.Name)
	switch {
	case isNotFound(err), err == nil && pod == nil: // both are seen in the wild
		return nil, fmt.Errorf("pod %s: %w", ref, podsync.ErrNotFound)
	case err != nil:
		return nil, err
	case pod.UID != ref.UID:
		return nil, fmt.Errorf("%w: UID %s instead of %s", errOtherPod, pod.UID, ref.UID)
	}
	return pod, nil
}

// isNotFound recognises the not-found errors of virtual-kubelet's errdefs by
// their method, without importing it.
func isNotFound(err error) bool {
	var notFound interface{ NotFound() bool }
	return errors.As(err, &notFound) && notFound.NotFound()
}

// stateOf returns the state of a provider's pod. The pod has stopped if its phase is
// terminal and no container status contradicts that.
func stateOf(pod *corev1.Pod) podsync.State {
	return podsync.State{
		Ref:        podsync.RefOf(pod),
		NodeName:   pod.Spec.NodeName,
		Generation: pod.Generation,
		Stopped:    podstatus.IsTerminal(pod.Status.Phase) && !podstatus.MayBeRunning(&pod.Status),
		Status:     *pod.Status.DeepCopy(),
	}
}

// notifyingAdapter is an adapter whose provider reports changes.
type notifyingAdapter struct {
	*adapter
	notifier Notifier
}

// Watch implements podsync.Watcher. virtual-kubelet has no way to take a
// callback back, so the one that is given to the provider goes quiet when Watch
// has returned.
func (a *notifyingAdapter) Watch(ctx context.Context, report func(podsync.State)) error {
	var mu sync.RWMutex
	live := true
	a.notifier.NotifyPods(ctx, func(pod *corev1.Pod) {
		mu.RLock()
		defer mu.RUnlock()
		if live && pod != nil {
			state := stateOf(pod)
			a.keep(state)
			report(state)
		}
	})
	<-ctx.Done()
	mu.Lock()
	defer mu.Unlock()
	live = false
	return nil
}
