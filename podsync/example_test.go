// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
)

// printer is a provider whose pods run by being remembered.
type printer struct {
	mu   sync.Mutex
	pods map[types.UID]podsync.State
}

func (p *printer) Start(_ context.Context, pod *corev1.Pod) (podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if st, ok := p.pods[pod.UID]; ok {
		return st, nil // called again: it runs already
	}
	fmt.Println("starting", pod.Name)
	st := podsync.State{Ref: podsync.RefOf(pod)}
	for _, c := range pod.Spec.Containers {
		st.Status.ContainerStatuses = append(st.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	p.pods[pod.UID] = st
	return st, nil
}

func (p *printer) Stop(_ context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st, ok := p.pods[ref.UID]
	if !ok {
		return podsync.State{Stopped: true}, nil
	}
	fmt.Println("stopping", ref.Name, "within", opts.Grace)
	delete(p.pods, ref.UID)
	for i := range st.Status.ContainerStatuses {
		st.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
	}
	st.Stopped = true
	return st, nil
}

func (p *printer) List(context.Context) (states []podsync.State, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.pods {
		states = append(states, st)
	}
	return states, nil
}

// A provider of three methods runs a pod and stops it when it is deleted.
func Example() {
	server := apitest.New(apitest.Options{}) // in place of a cluster
	client := server.Client(apitest.User{}).CoreV1()

	stored := make(chan struct{}, 10)
	controller, err := podsync.New(podsync.Config{
		Client:   client,
		Provider: &printer{pods: map[types.UID]podsync.State{}},
		NodeName: "node-1",
		Hooks: podsync.Hooks{
			StatusStored: func(podsync.StatusStored) { stored <- struct{}{} },
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- controller.Run(ctx) }()
	<-controller.Ready().Done()

	server.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.PodSpec{
			NodeName:   "node-1",
			Containers: []corev1.Container{{Name: "app", Image: "app:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	})
	<-stored
	pod, err := client.Pods("default").Get(ctx, "web", metav1.GetOptions{})
	fmt.Println(pod.Status.Phase, err)

	if err := client.Pods("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		fmt.Println(err)
	}
	for apitest.Get[*corev1.Pod](server, "default", "web") != nil {
		time.Sleep(time.Millisecond)
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// starting web
	// Running <nil>
	// stopping web within 30s
	// <nil>
}
