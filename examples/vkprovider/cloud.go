// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cloud is a typical provider for virtual-kubelet: it identifies pods by namespace
// and name, keeps whole pods, computes the phase, and reports changes through a
// callback. It runs nothing.
type cloud struct {
	nodeName string
	began    time.Time

	mu     sync.Mutex
	pods   map[string]*corev1.Pod
	notify func(*corev1.Pod)
}

func newCloud(nodeName string) *cloud {
	return &cloud{nodeName: nodeName, began: time.Now(), pods: make(map[string]*corev1.Pod)}
}

func nameOf(namespace, name string) string { return namespace + "/" + name }

// notFound has the method by which virtual-kubelet knows such errors.
type notFound string

func (n notFound) Error() string { return fmt.Sprintf("pod %q not found", string(n)) }
func (notFound) NotFound() bool  { return true }

// CreatePod implements node.PodLifecycleHandler.
func (c *cloud) CreatePod(_ context.Context, pod *corev1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := nameOf(pod.Namespace, pod.Name)
	if _, ok := c.pods[name]; ok {
		return fmt.Errorf("pod %q exists", name)
	}
	pod = pod.DeepCopy()
	now := metav1.Now()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.StartTime = &now
	pod.Status.PodIP = "192.0.2.1"
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.ContainerStatuses = nil
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	c.pods[name] = pod
	return nil
}

// UpdatePod implements node.PodLifecycleHandler.
func (c *cloud) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	held, ok := c.pods[nameOf(pod.Namespace, pod.Name)]
	if !ok {
		return notFound(pod.Name)
	}
	updated := pod.DeepCopy()
	updated.Status = held.Status
	c.pods[nameOf(pod.Namespace, pod.Name)] = updated
	return nil
}

// DeletePod implements node.PodLifecycleHandler: the last status goes out through the
// callback, and the pod is forgotten.
func (c *cloud) DeletePod(_ context.Context, pod *corev1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := nameOf(pod.Namespace, pod.Name)
	held, ok := c.pods[name]
	if !ok {
		return notFound(name)
	}
	delete(c.pods, name)
	last := held.DeepCopy()
	last.Status.Phase = corev1.PodSucceeded
	for i := range last.Status.ContainerStatuses {
		status := &last.Status.ContainerStatuses[i]
		status.Ready = false
		status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()}}
	}
	if c.notify != nil {
		c.notify(last)
	}
	return nil
}

// GetPod implements node.PodLifecycleHandler.
func (c *cloud) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod, ok := c.pods[nameOf(namespace, name)]
	if !ok {
		return nil, notFound(nameOf(namespace, name))
	}
	return pod.DeepCopy(), nil
}

// GetPodStatus implements node.PodLifecycleHandler.
func (c *cloud) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := c.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods implements node.PodLifecycleHandler.
func (c *cloud) GetPods(context.Context) ([]*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(c.pods))
	for _, pod := range c.pods {
		pods = append(pods, pod.DeepCopy())
	}
	return pods, nil
}

// NotifyPods implements node.PodNotifier.
func (c *cloud) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notify = notify
}

// ConfigureNode fills in the Node, as many providers do.
func (c *cloud) ConfigureNode(_ context.Context, node *corev1.Node) {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("20"),
		corev1.ResourceMemory: resource.MustParse("100Gi"),
		corev1.ResourcePods:   resource.MustParse("20"),
	}
	node.Labels = map[string]string{"type": "virtual-kubelet"}
	node.Spec.Taints = []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "cloud", Effect: corev1.TaintEffectNoSchedule}}
	node.Status.Capacity, node.Status.Allocatable = capacity, capacity
	node.Status.NodeInfo.ContainerRuntimeVersion = "cloud://1"
}
