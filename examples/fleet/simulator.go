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
// that must not be restarted, such as a Job's, succeed after a while. It keeps of
// each pod what its State is made of, so that tens of thousands are cheap.
type simulator struct {
	runFor time.Duration

	mu   sync.Mutex
	pods map[types.UID]simulated
}

// simulated is a simulated pod.
type simulated struct {
	podsync.Ref
	nodeName         string
	containers       []container
	ends             bool      // on its own
	started, stopped time.Time // stopped is zero while the pod runs
}

// container is a container of a simulated pod.
type container struct {
	name, image string
	init        bool
	runs        bool // as long as the pod does; other init containers end at once
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
		return p.state(), nil // called again
	}
	p := simulated{
		Ref:        podsync.RefOf(pod),
		nodeName:   pod.Spec.NodeName,
		containers: make([]container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)),
		ends:       pod.Spec.RestartPolicy != corev1.RestartPolicyAlways,
		started:    time.Now(),
	}
	for _, c := range pod.Spec.InitContainers {
		p.containers = append(p.containers, container{name: c.Name, image: c.Image, init: true, runs: c.RestartPolicy != nil})
	}
	for _, c := range pod.Spec.Containers {
		p.containers = append(p.containers, container{name: c.Name, image: c.Image, runs: true})
	}
	s.pods[pod.UID] = p
	return p.state(), nil
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
	if p.stopped.IsZero() {
		p.stopped = time.Now()
		s.pods[p.UID] = p
	}
	return p.state()
}

// state returns the State of the pod, a new one at each call.
func (p simulated) state() podsync.State {
	const ip = "192.0.2.1" // TEST-NET-1, which is never assigned (RFC 5737)
	state := podsync.State{Ref: p.Ref, NodeName: p.nodeName, Stopped: !p.stopped.IsZero()}
	state.Status.PodIP, state.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	for _, c := range p.containers {
		if c.init {
			state.Status.InitContainerStatuses = append(state.Status.InitContainerStatuses, p.status(c))
		} else {
			state.Status.ContainerStatuses = append(state.Status.ContainerStatuses, p.status(c))
		}
	}
	return state
}

func (p simulated) status(c container) corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: c.name, Image: c.image}
	started, finished := metav1.NewTime(p.started), metav1.NewTime(p.stopped)
	switch {
	case c.runs && p.stopped.IsZero():
		status.Ready, status.Started = true, new(true)
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: started}
		return status
	case c.runs:
		status.Started = new(false)
	default:
		status.Ready, finished = true, started
	}
	status.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: finished}
	return status
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
		states = append(states, p.state())
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
		if p.ends && p.stopped.IsZero() && time.Since(p.started) >= s.runFor {
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
		if p.stopped.IsZero() {
			running++
		}
	}
	return running
}
