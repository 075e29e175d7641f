// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"fmt"
	"iter"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// Admit implements podsync.Admitter: a pod that asks for what there isn't, or
// for more than is left, fails, and whoever made it may make it elsewhere.
func (p *Provider) Admit(_ context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error {
	why := unsupported(pod, int64(os.Geteuid()))
	if why == "" && p.cfg.CPUs == nil && len(pod.Spec.ResourceClaims) > 0 {
		why = "resource claims: this kubelet has no devices"
	}
	if why != "" {
		return podsync.Reject("Unsupported", why)
	}
	return fits(pod, active, p.cfg.Allocatable)
}

// unsupported says what in a pod can't be had here, or nothing. uid is the user
// that everything runs as.
func unsupported(pod *corev1.Pod, uid int64) string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	user := func(what string, run *int64, nonRoot *bool) {
		if run != nil && *run != uid {
			add("%s: runAsUser %d, but everything runs as user %d", what, *run, uid)
		}
		if nonRoot != nil && *nonRoot && uid == 0 {
			add("%s: runAsNonRoot, but everything runs as root", what)
		}
	}
	if s := pod.Spec.SecurityContext; s != nil {
		user("pod", s.RunAsUser, s.RunAsNonRoot)
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; !podenv.IsData(v) && v.EmptyDir == nil && v.HostPath == nil {
			add("volume %s: only emptyDir, hostPath and data from the API", v.Name)
		}
	}
	check := func(c *corev1.Container) {
		what := "container " + c.Name
		if len(c.Command) == 0 {
			add("%s: no command, and images are not pulled", what)
		}
		if s := c.SecurityContext; s != nil {
			user(what, s.RunAsUser, s.RunAsNonRoot)
		}
		for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if p != nil && p.GRPC != nil {
				add("%s: gRPC probe", what)
			}
		}
		for _, r := range c.RestartPolicyRules {
			if r.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				add("%s: restart rule %s", what, r.Action)
			}
		}
		for _, a := range c.VolumeMounts {
			for _, b := range c.VolumeMounts {
				if strings.HasPrefix(b.MountPath, strings.TrimSuffix(a.MountPath, "/")+"/") {
					add("%s: a mount at %s inside that at %s", what, b.MountPath, a.MountPath)
				}
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		check(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		check(&pod.Spec.Containers[i])
	}
	return strings.Join(why, "; ")
}

// fits rejects a pod for which there is no room. The scheduler has counted too,
// but perhaps before another pod was bound.
func fits(pod *corev1.Pod, active iter.Seq[*corev1.Pod], allocatable corev1.ResourceList) error {
	left := allocatable.DeepCopy()
	take := func(name corev1.ResourceName, pod *corev1.Pod) bool {
		q, limited := left[name]
		if !limited {
			return true
		}
		q.Sub(request(pod, name))
		left[name] = q
		return q.Sign() >= 0
	}
	for other := range active {
		for name := range allocatable {
			take(name, other)
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory} {
		if !take(name, pod) {
			have := allocatable[name]
			return podsync.Reject("OutOf"+string(name), fmt.Sprintf("the node has %s of %s in all, and not enough is left", have.String(), name))
		}
	}
	return nil
}
