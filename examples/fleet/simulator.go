// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
)

// simulator is a podsync.Provider that records its pods and runs nothing. Pods
// that must not be restarted, such as a Job's, succeed after a while. It keeps
// only the State of each pod, so that tens of thousands are cheap.
type simulator struct {
	runFor time.Duration

	mu   sync.Mutex
	pods map[types.UID]simulated
}

// simulated is a simulated pod.
type simulated struct {
	podsync.State
	due time.Time // when it succeeds; zero for never
}

// private returns a deep copy of the State, which the caller may change or read
// concurrently with the simulator.
func (p simulated) private() podsync.State {
	state := p.State
	state.Status = *state.Status.DeepCopy()
	return state
}

func newSimulator(runFor time.Duration) *simulator {
	return &simulator{runFor: runFor, pods: make(map[types.UID]simulated)}
}

// podsync finds these interfaces by type assertion, so a changed signature must
// not compile.
var (
	_ podsync.Provider = (*simulator)(nil)
	_ podsync.Watcher  = (*simulator)(nil)
	_ podsync.Releaser = (*simulator)(nil)
)

// tick is the time between two checks for completed pods.
const tick = time.Second

// Start implements podsync.Provider.
func (s *simulator) Start(_ context.Context, pod *corev1.Pod) (podsync.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.pods[pod.UID]; ok {
		return p.private(), nil // called again
	}
	now := metav1.Now()
	state := podsync.State{Ref: podsync.RefOf(pod), NodeName: pod.Spec.NodeName}
	state.Status.PodIP = "192.0.2.1" // TEST-NET-1, which is never assigned (RFC 5737)
	state.Status.PodIPs = []corev1.PodIP{{IP: state.Status.PodIP}}
	for _, c := range pod.Spec.InitContainers {
		state.Status.InitContainerStatuses = append(state.Status.InitContainerStatuses, ended(c, now))
	}
	for _, c := range pod.Spec.Containers {
		state.Status.ContainerStatuses = append(state.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	p := simulated{State: state}
	if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		p.due = now.Add(s.runFor)
	}
	s.pods[pod.UID] = p
	return p.private(), nil
}

// Stop implements podsync.Provider.
func (s *simulator) Stop(_ context.Context, ref podsync.Ref, _ podsync.StopOptions) (podsync.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[ref.UID]
	if !ok {
		return podsync.State{Ref: ref, Stopped: true}, nil
	}
	return s.end(p), nil
}

// end stops a pod if it is running. s.mu must be held.
func (s *simulator) end(p simulated) podsync.State {
	if p.Stopped {
		return p.private()
	}
	now := metav1.Now()
	state := p.State
	for i := range state.Status.ContainerStatuses {
		c := &state.Status.ContainerStatuses[i]
		c.Ready, c.Started = false, new(false)
		started := c.State.Running.StartedAt
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: now}}
	}
	state.Stopped = true
	p = simulated{State: state}
	s.pods[state.UID] = p
	return p.private()
}

// Release implements podsync.Releaser.
func (s *simulator) Release(_ context.Context, ref podsync.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, ref.UID)
	return nil
}

// List implements podsync.Provider.
func (s *simulator) List(context.Context) ([]podsync.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]podsync.State, 0, len(s.pods))
	for _, p := range s.pods {
		states = append(states, p.private())
	}
	return states, nil
}

// Watch implements podsync.Watcher. It ends pods that have run long enough.
func (s *simulator) Watch(ctx context.Context, report func(podsync.State)) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for _, state := range s.endDue() {
				report(state)
			}
		}
	}
}

func (s *simulator) endDue() (ended []podsync.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if !p.due.IsZero() && time.Until(p.due) <= 0 {
			ended = append(ended, s.end(p))
		}
	}
	return ended
}

// count returns the number of running pods.
func (s *simulator) count() (running int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if !p.Stopped {
			running++
		}
	}
	return running
}

// ended returns the status of an init container that has completed.
func ended(c corev1.Container, now metav1.Time) corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true}
	if c.RestartPolicy != nil { // a sidecar keeps running
		status.Started = new(true)
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
		return status
	}
	status.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}
	return status
}
