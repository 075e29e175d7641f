// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/cgroups"
	"github.com/kubewright/kubewright/test/conformance/rig"
)

// TestAPodHasTheLimitsOfItsSpec checks the cgroups of pods, and that two containers
// can't have more memory together than their pod.
func TestAPodHasTheLimitsOfItsSpec(t *testing.T) {
	s, client := needsContainers(t)
	s.explain(t, client)
	pods := client.CoreV1().Pods("default")

	// Each container writes 40 MiB to memory. Its own limit is that of the pod, 64 MiB.
	greedy := limitedPod("greedy", "", "")
	greedy.Spec.RestartPolicy = corev1.RestartPolicyNever
	greedy.Spec.Resources = &corev1.ResourceRequirements{Limits: limits("300m", "64Mi")}
	for i := range greedy.Spec.Containers {
		c := &greedy.Spec.Containers[i]
		greedy.Spec.Volumes = append(greedy.Spec.Volumes, corev1.Volume{
			Name: c.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
		})
		c.VolumeMounts = []corev1.VolumeMount{{Name: c.Name, MountPath: "/memory"}}
		c.Command = []string{"dd", "if=/dev/zero", "of=/memory/file", "bs=1M", "count=40"}
	}
	shared := limitedPod("shared", "100m", "32Mi")
	for _, pod := range []*corev1.Pod{greedy, shared} {
		made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.UID = made.UID
	}
	eventually(t, "the pod to run", func() bool {
		p, err := pods.Get(t.Context(), shared.Name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning
	})
	s.expectLimits(t, shared.UID, 20_000, 64<<20)

	// The limit of one container grows, and then shrinks.
	for _, step := range []struct {
		cpu, memory string
		quota       int
		bytes       int
	}{{"400m", "96Mi", 50_000, 128 << 20}, {"50m", "32Mi", 15_000, 64 << 20}} {
		patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"one","resources":{"limits":{"cpu":%[1]q,"memory":%[2]q},"requests":{"cpu":%[1]q,"memory":%[2]q}}}]}}`, step.cpu, step.memory)
		if _, err := pods.Patch(t.Context(), shared.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the resize to "+step.cpu, func() bool {
			p, err := pods.Get(t.Context(), shared.Name, metav1.GetOptions{})
			if err != nil || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].Resources == nil {
				return false
			}
			return p.Status.ContainerStatuses[0].Resources.Limits.Cpu().String() == step.cpu
		})
		s.expectLimits(t, shared.UID, step.quota, step.bytes)
	}

	failed := 0
	eventually(t, "the greedy pod to end", func() bool {
		p, err := pods.Get(t.Context(), greedy.Name, metav1.GetOptions{})
		if err != nil || p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			return false
		}
		for _, c := range p.Status.ContainerStatuses {
			t.Logf("container %s: %v", c.Name, c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failed++
			}
		}
		return true
	})
	if failed == 0 {
		t.Error("the containers had 80 MiB together, and the limit of the pod is 64 MiB")
	}
	s.nothingIsLeft(t, client)
}

// limits returns the limits of a container or a pod.
func limits(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// limitedPod returns a pod with two containers that sleep, each with the limits if there
// are any.
func limitedPod(name, cpu, memory string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: "worker", AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "one"}, {Name: "two"}},
		},
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Image, c.Command = rig.BusyboxImage, []string{"sleep", "100000"}
		if cpu != "" {
			c.Resources.Limits = limits(cpu, memory)
		}
	}
	return pod
}

// podCgroup returns the cgroup of a pod.
func (s *suite) podCgroup(pod types.UID) string {
	return s.runtime.CgroupParent() + "/pod" + string(pod)
}

// expectLimits compares the limits of the cgroup of a pod, which all processes of the
// pod are in.
func (s *suite) expectLimits(t *testing.T, pod types.UID, quota, memory int) {
	t.Helper()
	want := map[string]string{"cpu.cfs_quota_us": strconv.Itoa(quota), "cpu.max": strconv.Itoa(quota) + " 100000"}
	for _, file := range []string{"memory.limit_in_bytes", "memory.max"} {
		want[file] = strconv.Itoa(memory)
	}
	compared, processes := map[string]bool{}, map[string]int{}
	for _, dir := range cgroups.Kernel.Dirs(s.podCgroup(pod)) {
		controller, container, _ := strings.Cut(dir, s.podCgroup(pod))
		if list, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil {
			processes[controller] += len(strings.Fields(string(list)))
		}
		if container != "" {
			continue
		}
		for file, value := range want {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue // of another controller or version
			}
			compared[file] = true
			if strings.TrimSpace(string(text)) != value {
				t.Errorf("%s of the pod is %s, want %s", file, text, value)
			}
		}
	}
	if len(compared) != 2 {
		t.Errorf("the pod has the limits %v, want CPU and memory", compared)
	}
	for _, controller := range []string{"cpu", "memory"} {
		n, ok := processes[filepath.Join(string(cgroups.Kernel), controller)]
		if !ok {
			n = processes[string(cgroups.Kernel)] // of version 2
		}
		if n != 3 {
			t.Errorf("%d processes of the pod are in its cgroup of %s, want 3", n, controller)
		}
	}
}
