// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/internal/lineartest"
	"github.com/kubewright/kubewright/podsync"
)

// largePod returns a pod of n containers, each with a request, a limit, a host port and a resource
// of its own.
func largePod(name string, n int) *corev1.Pod {
	pod := guest(name, "1m", "1")
	pod.Spec.Containers = nil
	for i := range n {
		own := corev1.ResourceName(fmt.Sprint("example.com/r", i))
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprint("c", i), Ports: []corev1.ContainerPort{{HostPort: int32(i%60000) + 1, HostIP: fmt.Sprint("192.0.2.", len(name))}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10u"), own: resource.MustParse("1")},
				Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), own: resource.MustParse("1")},
			},
		})
	}
	return pod
}

// TestDecisionsAboutALargePodAreLinear: a tenant makes pods as large as the API server stores, and
// others must not wait for them.
func TestDecisionsAboutALargePodAreLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	for name, prepare := range map[string]func(n int) func(){
		"the resources of a pod": func(n int) func() {
			pod := largePod("a", n)
			return func() { PodResources(pod) }
		},
		"an admission": func(n int) func() {
			l, pod, other := newLodge(t), largePod("a", n), largePod("bb", n)
			l.hold(other)
			return func() {
				if err := l.admit(t.Context(), pod, slices.Values([]*corev1.Pod{other})); err != nil {
					t.Error(err)
				}
			}
		},
		"an update of labels": func(n int) func() {
			l, pod := newLodge(t), largePod("a", n)
			l.hold(pod)
			return func() {
				if got, why := l.update(t.Context(), pod.DeepCopy(), now); why.reason != "" || got == pod {
					t.Error(why)
				}
			}
		},
		"a resize": func(n int) func() {
			l, pod := newLodge(t), largePod("a", n)
			l.hold(pod)
			return func() {
				pod = pod.DeepCopy()
				pod.Spec.Containers[n-1].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("5")
				if _, why := l.update(t.Context(), pod, now); why.reason != corev1.PodReasonInfeasible {
					t.Error(why)
				}
			}
		},
		"a spec and a list": func(n int) func() {
			spec := largePod("a", n)
			owner := &node{}
			pod := &pod{node: owner, ref: podsync.RefOf(spec), reports: reports{groups: &owner.groups}, ctx: t.Context()}
			var runs []Container
			for i := range n {
				runs = append(runs, Container{ID: ContainerID{spec.UID, fmt.Sprint("c", i), 0}, State: ContainerCreated})
			}
			return func() {
				pod.containers = nil
				pod.setSpec(spec)
				pod.setSpec(spec)
				pod.take(listing{runs: runs})
			}
		},
	} {
		t.Run(name, func(t *testing.T) { lineartest.Check(t, 1000, prepare) })
	}
}
