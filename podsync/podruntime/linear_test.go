// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/internal/lineartest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
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
		"the mounts of a container": func(n int) func() {
			pod, c, dir := largePod("a", 1), &corev1.Container{}, t.TempDir()
			for i := range n {
				name := fmt.Sprint("v", i)
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
			}
			return func() {
				if _, err := mountsOf(pod, c, &podenv.Environment{}, dir, false); err != nil {
					t.Error(err)
				}
			}
		},
		"a subPathExpr": func(n int) func() {
			pod, env, dir := largePod("a", 1), &podenv.Environment{}, t.TempDir()
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
			for i := range n {
				env.Vars = append(env.Vars, podenv.Var{Name: fmt.Sprintf("V%06d", i)})
			}
			last := "$(" + env.Vars[len(env.Vars)-1].Name + ")"
			c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPathExpr: strings.Repeat(last, n)}}}
			return func() {
				if _, err := mountsOf(pod, c, env, dir, false); err != nil {
					t.Error(err)
				}
			}
		},
		"the options of a resolv.conf": func(n int) func() {
			pod := largePod("a", 1)
			pod.Spec.DNSConfig = &corev1.PodDNSConfig{}
			for i := range n {
				pod.Spec.DNSConfig.Options = append(pod.Spec.DNSConfig.Options, corev1.PodDNSConfigOption{Name: fmt.Sprint("o", i)})
			}
			return func() { dnsOf(pod, ClusterDNS{}) }
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
