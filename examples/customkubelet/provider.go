// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/podsync"
)

// provider pretends to run pods: each container runs until its pod is stopped. Replace it
// by what runs pods for you. podsync calls the three methods of podsync.Provider again
// until they succeed, so each of them has to be idempotent.
//
// This one forgets its pods when the process ends, so the next process takes them for
// lost. A provider whose pods outlive the process returns them from List.
type provider struct {
	ip string

	mu   sync.Mutex
	pods map[types.UID]*instance
}

type instance struct {
	state podsync.State
	logs  map[string]*strings.Builder // by the name of the container
}

var (
	_ podsync.Provider  = (*provider)(nil)
	_ nodeapi.LogSource = (*provider)(nil)
)

func newProvider(ip string) *provider {
	return &provider{ip: ip, pods: map[types.UID]*instance{}}
}

// Start implements podsync.Provider.
func (p *provider) Start(_ context.Context, pod *corev1.Pod) (podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.pods[pod.UID]; known != nil {
		return known.copy(), nil
	}
	in := &instance{
		state: podsync.State{Ref: podsync.RefOf(pod), NodeName: pod.Spec.NodeName},
		logs:  map[string]*strings.Builder{},
	}
	in.state.Status.PodIPs = []corev1.PodIP{{IP: p.ip}}
	now := metav1.Now()
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
	for _, c := range pod.Spec.InitContainers {
		state := ended
		if c.RestartPolicy != nil { // a sidecar
			state = runs
		}
		in.state.Status.InitContainerStatuses = append(in.state.Status.InitContainerStatuses, in.statusOf(c, state))
	}
	for _, c := range pod.Spec.Containers {
		in.state.Status.ContainerStatuses = append(in.state.Status.ContainerStatuses, in.statusOf(c, runs))
	}
	p.pods[pod.UID] = in
	return in.copy(), nil
}

// copy returns the state for podsync, which may not share memory with it.
func (in *instance) copy() podsync.State {
	st := in.state
	st.Status = *in.state.Status.DeepCopy()
	return st
}

// statusOf returns the status of a container in the given state, and begins its log.
func (in *instance) statusOf(c corev1.Container, state corev1.ContainerState) corev1.ContainerStatus {
	in.logs[c.Name] = &strings.Builder{}
	fmt.Fprintf(in.logs[c.Name], "%s pretends to run %s\n", c.Name, c.Image)
	started := state.Running != nil
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, Ready: true, Started: &started, State: *state.DeepCopy(),
		ContainerID: "pretend://" + string(in.state.UID) + "/" + c.Name,
	}
}

// Stop implements podsync.Provider. It need not wait for the end of the pod: podsync calls
// it until State.Stopped is set.
func (p *provider) Stop(_ context.Context, ref podsync.Ref, _ podsync.StopOptions) (podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := p.pods[ref.UID]
	if in == nil {
		return podsync.State{Ref: ref, Stopped: true}, nil
	}
	delete(p.pods, ref.UID)
	stopped := in.copy()
	stopped.Stopped = true
	for _, statuses := range [][]corev1.ContainerStatus{stopped.Status.InitContainerStatuses, stopped.Status.ContainerStatuses} {
		for i := range statuses {
			if c := &statuses[i]; c.State.Running != nil {
				c.Ready, c.State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					Reason: "Completed", StartedAt: c.State.Running.StartedAt, FinishedAt: metav1.Now(), ContainerID: c.ContainerID,
				}}
			}
		}
	}
	return stopped, nil
}

// List implements podsync.Provider. An empty list says that nothing runs: if the machine
// does not answer, return an error.
func (p *provider) List(context.Context) ([]podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []podsync.State
	for _, in := range p.pods {
		all = append(all, in.copy())
	}
	return all, nil
}

// Logs implements nodeapi.LogSource, for kubectl logs. A provider with Exec, Attach and
// PortForward serves these commands too.
func (p *provider) Logs(_ context.Context, c nodeapi.Container, _ nodeapi.LogOptions) (io.ReadCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.pods[c.UID]; in != nil && in.logs[c.Name] != nil {
		return io.NopCloser(strings.NewReader(in.logs[c.Name].String())), nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), c.String())
}
