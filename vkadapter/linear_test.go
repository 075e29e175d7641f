// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/lineartest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/vkadapter"
)

// A hoard is a provider with the pods of others too. Each of its answers costs the same, and
// its statuses have the containers in reverse order.
type hoard struct {
	pods   map[string]*corev1.Pod
	others []*corev1.Pod
}

func (h *hoard) CreatePod(_ context.Context, pod *corev1.Pod) error {
	pod = pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	for _, c := range slices.Backward(pod.Spec.Containers) {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	h.pods[pod.Name] = pod
	return nil
}

func (h *hoard) UpdatePod(context.Context, *corev1.Pod) error { return nil }

func (h *hoard) DeletePod(_ context.Context, pod *corev1.Pod) error {
	delete(h.pods, pod.Name)
	return nil
}

func (h *hoard) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	if pod := h.pods[name]; pod != nil {
		return pod, nil
	}
	return nil, errdefs.NotFound("no such pod")
}

func (h *hoard) GetPodStatus(_ context.Context, _, name string) (*corev1.PodStatus, error) {
	pod, err := h.GetPod(context.Background(), "", name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

func (h *hoard) GetPods(context.Context) ([]*corev1.Pod, error) {
	all := slices.Clone(h.others)
	for _, pod := range h.pods {
		all = append(all, pod)
	}
	return all, nil
}

// TestTheCostOfWhatOthersSendIsLinear: a pod is as large as its user likes, and a back end has as
// many pods as others give it.
func TestTheCostOfWhatOthersSendIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	pods := func(prefix string, n int) (list []*corev1.Pod) {
		for i := range n {
			name := fmt.Sprint(prefix, i)
			list = append(list, newPod(name, types.UID("uid-"+name)))
		}
		return list
	}
	large := func(n int) []*corev1.Pod {
		pod := newPod("large", "uid-large")
		pod.Labels, pod.Annotations, pod.Spec.Containers = map[string]string{}, map[string]string{}, nil
		for i := range n {
			name := fmt.Sprint("c", i)
			pod.Labels["example.com/"+name], pod.Annotations["example.com/"+name] = "v", "v"
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: "registry.example/i:1"})
		}
		return []*corev1.Pod{pod}
	}
	for name, c := range map[string]struct {
		size         int
		pods, others func(n int) []*corev1.Pod
	}{
		"a pod with many containers, labels and annotations": {size: 2000, pods: large},
		"many pods": {size: 250, pods: func(n int) []*corev1.Pod { return pods("p", n) }},
		"many pods that others have started": {
			size: 500, pods: func(int) []*corev1.Pod { return pods("p", 1) },
			others: func(n int) []*corev1.Pod { return pods("other", n) },
		},
		"many pods of others without a UID, beside as many of ours": {
			size: 250, pods: func(n int) []*corev1.Pod { return pods("p", n) },
			others: func(n int) []*corev1.Pod {
				list := pods("other", n)
				for _, pod := range list {
					pod.UID = ""
				}
				return list
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			lineartest.Check(t, c.size, func(n int) func() {
				ours := c.pods(n)
				return func() {
					synctest.Test(t, func(t *testing.T) {
						h := &hoard{pods: map[string]*corev1.Pod{}}
						if c.others != nil {
							h.others = c.others(n)
						}
						a, err := vkadapter.New(h, vkadapter.Config{NodeName: nodeName})
						if err != nil {
							t.Fatal(err)
						}
						for _, pod := range ours {
							if _, err := a.Start(t.Context(), pod); err != nil {
								t.Fatal(err)
							}
						}
						if states := rounds(t, a, 20); len(states) != len(ours)+len(h.others) {
							t.Errorf("%d states of %d pods", len(states), len(ours)+len(h.others))
						}
						for _, pod := range ours {
							if _, err := a.Stop(t.Context(), podsync.RefOf(pod), podsync.StopOptions{Pod: pod}); err != nil {
								t.Error(err)
							}
						}
					})
				}
			})
		})
	}
}
