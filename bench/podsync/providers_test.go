// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
)

// nothing is a podsync.Provider that records its pods and runs nothing.
type nothing struct {
	mu   sync.Mutex
	pods map[types.UID]podsync.State
}

func newNothing() *nothing { return &nothing{pods: make(map[types.UID]podsync.State)} }

func (n *nothing) Start(_ context.Context, pod *corev1.Pod) (podsync.State, error) {
	countStart()
	n.mu.Lock()
	defer n.mu.Unlock()
	state := podsync.State{Ref: podsync.RefOf(pod), Status: running(pod)}
	n.pods[pod.UID] = state
	return state, nil
}

func (n *nothing) Stop(_ context.Context, ref podsync.Ref, _ podsync.StopOptions) (podsync.State, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	state, ok := n.pods[ref.UID]
	if !ok {
		return podsync.State{Ref: ref, Stopped: true}, nil
	}
	delete(n.pods, ref.UID)
	state.Status = *state.Status.DeepCopy()
	terminated(&state.Status)
	state.Stopped = true
	return state, nil
}

func (n *nothing) List(context.Context) ([]podsync.State, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	states := make([]podsync.State, 0, len(n.pods))
	for _, state := range n.pods {
		states = append(states, state)
	}
	return states, nil
}

func (n *nothing) Watch(ctx context.Context, _ func(podsync.State)) error {
	<-ctx.Done() // pods never change on their own
	return nil
}

// virtualKubeletNothing is the equivalent of nothing for virtual-kubelet.
type virtualKubeletNothing struct {
	mu     sync.Mutex
	pods   map[string]*corev1.Pod
	notify func(*corev1.Pod)
}

func newVirtualKubeletNothing() *virtualKubeletNothing {
	return &virtualKubeletNothing{pods: make(map[string]*corev1.Pod)}
}

func (n *virtualKubeletNothing) CreatePod(_ context.Context, pod *corev1.Pod) error {
	countStart()
	pod = pod.DeepCopy()
	pod.Status = running(pod)
	n.mu.Lock()
	n.pods[pod.Namespace+"/"+pod.Name] = pod
	n.mu.Unlock()
	n.notify(pod)
	return nil
}

func (n *virtualKubeletNothing) UpdatePod(context.Context, *corev1.Pod) error { return nil }

func (n *virtualKubeletNothing) DeletePod(_ context.Context, pod *corev1.Pod) error {
	n.mu.Lock()
	held, ok := n.pods[pod.Namespace+"/"+pod.Name]
	delete(n.pods, pod.Namespace+"/"+pod.Name)
	n.mu.Unlock()
	if !ok {
		return noPod(pod.Name)
	}
	held = held.DeepCopy()
	terminated(&held.Status)
	n.notify(held)
	return nil
}

func (n *virtualKubeletNothing) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pod, ok := n.pods[namespace+"/"+name]
	if !ok {
		return nil, noPod(name)
	}
	return pod.DeepCopy(), nil
}

func (n *virtualKubeletNothing) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := n.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

func (n *virtualKubeletNothing) GetPods(context.Context) ([]*corev1.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(n.pods))
	for _, pod := range n.pods {
		pods = append(pods, pod.DeepCopy())
	}
	return pods, nil
}

func (n *virtualKubeletNothing) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	n.notify = notify
}
