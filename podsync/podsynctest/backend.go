// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsynctest

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// Options configure how a Backend behaves without faults.
type Options struct {
	// StartTime is the time that containers take to run. Default: they run when
	// Start returns.
	StartTime time.Duration
	// StopTime is the time that containers take to end after Stop, unless the grace
	// period ends them sooner. Default: they have ended when Stop returns.
	StopTime time.Duration
	// ExitCode is that of containers that are stopped within their grace
	// period. Default: 0. Those that are not end with 137.
	ExitCode int32
	// Forgets drops a pod when it has ended after a call of Stop, as providers do that
	// are not a Releaser. A pod that ends on its own stays until Stop is called.
	Forgets bool
	// NeverRestarts does not restart containers that have exited, even if the restart
	// policy says so. Default: containers with CompletesImage are restarted if the
	// policy is Always.
	NeverRestarts bool
	// HidesNode leaves State.NodeName empty, as a backend does that stores only the UIDs
	// of pods.
	HidesNode bool
}

// A Backend runs pods in memory. Make it with NewBackend.
type Backend struct {
	opts Options

	mu         sync.Mutex
	pods       map[types.UID]*instance
	history    map[types.UID]*record
	connected  map[*Provider]struct{}
	faults     []*fault
	calls      []*Call
	violations []string
}

// CompletesImage is the image of containers that exit with 0 as soon as they
// run, if all containers of the pod have it.
const CompletesImage = "podsynctest.invalid/completes:1"

// An instance is a pod that the backend holds.
type instance struct {
	ref     podsync.Ref
	pod     *corev1.Pod
	state   podsync.State
	kill    time.Time   // when its grace period ends; zero: it isn't being stopped
	timer   *time.Timer // starts or ends its containers
	changed uint64

	restarts int
}

// NewBackend returns a Backend without pods.
func NewBackend(opts Options) *Backend {
	return &Backend{
		opts:      opts,
		pods:      map[types.UID]*instance{},
		history:   map[types.UID]*record{},
		connected: map[*Provider]struct{}{},
	}
}

// Plant makes an instance of a pod as if an earlier process had started it. Its
// containers run.
func (b *Backend) Plant(pod *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recordOf(podsync.RefOf(pod)).started = true
	b.create(pod.DeepCopy())
	b.run(b.pods[pod.UID])
}

// create makes an instance whose containers wait.
func (b *Backend) create(pod *corev1.Pod) *instance {
	in := &instance{ref: podsync.RefOf(pod), pod: pod}
	in.state = podsync.State{Ref: in.ref, Generation: pod.Generation}
	if !b.opts.HidesNode {
		in.state.NodeName = pod.Spec.NodeName
	}
	in.state.Status.ContainerStatuses = each(pod.Spec.Containers, waitingState)
	in.state.Status.InitContainerStatuses = each(pod.Spec.InitContainers, waitingState)
	b.pods[pod.UID] = in
	return in
}

func waitingState() corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: podstatus.ReasonContainerCreating}}
}

func each(containers []corev1.Container, state func() corev1.ContainerState) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	for i := range containers {
		statuses = append(statuses, corev1.ContainerStatus{Name: containers[i].Name, Image: containers[i].Image, State: state()})
	}
	return statuses
}

// run makes the containers of in run: init containers have completed, sidecars
// run beside the others.
func (b *Backend) run(in *instance) {
	if in.state.Stopped {
		return
	}
	now := metav1.Now()
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	st := &in.state.Status
	st.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
	st.PodIP = "10.0.0.1"
	for i := range st.ContainerStatuses {
		st.ContainerStatuses[i].State = *running.DeepCopy()
		st.ContainerStatuses[i].Ready = true
	}
	for i := range st.InitContainerStatuses {
		c := &st.InitContainerStatuses[i]
		if p := in.pod.Spec.InitContainers[i].RestartPolicy; p != nil && *p == corev1.ContainerRestartPolicyAlways {
			c.State, c.Ready, c.Started = *running.DeepCopy(), true, new(true)
			continue
		}
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
		c.Ready = true
	}
	if completes(in.pod) {
		b.end(in, 0)
		if policy := in.pod.Spec.RestartPolicy; !b.opts.NeverRestarts && (policy == "" || policy == corev1.RestartPolicyAlways) {
			b.after(in, restartDelay<<min(in.restarts, 8), func() { b.restart(in) })
		}
	}
	b.report(in)
}

// restartDelay is the time from the first exit of a container to its next start. It
// doubles with each restart.
const restartDelay = time.Second

// restart starts the containers of in again.
func (b *Backend) restart(in *instance) {
	in.restarts++
	for i := range in.state.Status.ContainerStatuses {
		c := &in.state.Status.ContainerStatuses[i]
		c.RestartCount++
		c.LastTerminationState, c.State = c.State, corev1.ContainerState{}
	}
	b.run(in)
}

func completes(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Image != CompletesImage {
			return false
		}
	}
	return true
}

// end makes the containers of in end with a code.
func (b *Backend) end(in *instance, code int32) {
	now := metav1.Now()
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	st := &in.state.Status
	for _, list := range [][]corev1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.State.Terminated != nil {
				continue
			}
			ended := &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: now}
			if c.State.Running != nil {
				ended.StartedAt = c.State.Running.StartedAt
			} else {
				ended.ExitCode, ended.Reason, ended.StartedAt = 137, "Error", now
			}
			c.State, c.Ready, c.Started = corev1.ContainerState{Terminated: ended}, false, new(false)
		}
	}
}

// stopped records that nothing of in runs.
func (b *Backend) stopped(in *instance, code int32) {
	if in.state.Stopped {
		return
	}
	if in.timer != nil {
		in.timer.Stop()
	}
	b.end(in, code)
	in.state.Stopped = true
	b.report(in)
	if b.opts.Forgets && !in.kill.IsZero() {
		delete(b.pods, in.ref.UID)
	}
}

// after does f with the instance later, if it is still the same.
func (b *Backend) after(in *instance, d time.Duration, f func()) {
	if in.timer != nil {
		in.timer.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.pods[in.ref.UID] == in && in.timer == timer {
			f()
		}
	})
	in.timer = timer
}

// report sends a state to the watchers.
func (b *Backend) report(in *instance) {
	in.changed++
	for p := range b.connected {
		p.queue(copyState(in.state))
	}
}

func copyState(st podsync.State) podsync.State {
	st.Status = *st.Status.DeepCopy()
	return st
}

// Exit makes all containers of a pod end by themselves with a code, and the
// rest of it stay, as after the work of a Job. It reports false for a pod that
// is not there.
func (b *Backend) Exit(uid types.UID, code int32) bool {
	return b.with(uid, func(in *instance) {
		if in.timer != nil && in.kill.IsZero() {
			in.timer.Stop() // it was about to run, and has ended instead
			in.timer = nil
		}
		b.end(in, code)
		b.report(in)
	})
}

// Finish makes a pod stop on its own, with nothing left but what List still
// says of it.
func (b *Backend) Finish(uid types.UID, code int32) bool {
	return b.with(uid, func(in *instance) { b.stopped(in, code) })
}

// Lose makes the backend forget a pod without a word, running or not.
func (b *Backend) Lose(uid types.UID) bool {
	return b.with(uid, func(in *instance) {
		if in.timer != nil {
			in.timer.Stop()
		}
		delete(b.pods, uid)
		b.recordOf(in.ref).lost = true
	})
}

// Edit changes the status of a pod and reports it.
func (b *Backend) Edit(uid types.UID, f func(*corev1.PodStatus)) bool {
	return b.with(uid, func(in *instance) {
		f(&in.state.Status)
		b.report(in)
	})
}

// Repeat reports the state of a pod again.
func (b *Backend) Repeat(uid types.UID) bool { return b.with(uid, b.report) }

func (b *Backend) with(uid types.UID, f func(*instance)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.pods[uid]
	if in == nil {
		return false
	}
	f(in)
	return true
}

// Held returns the pods that the backend holds, stopped ones included, by name.
func (b *Backend) Held() []podsync.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	states := make([]podsync.State, 0, len(b.pods))
	for _, in := range b.pods {
		states = append(states, copyState(in.state))
	}
	slices.SortFunc(states, func(x, y podsync.State) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	return states
}

// Running reports whether anything of a pod runs or may still run.
func (b *Backend) Running(uid types.UID) bool {
	running := false
	b.with(uid, func(in *instance) { running = !in.state.Stopped })
	return running
}
