// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/internal/cgroups"
)

// limited returns a container with limits, which are its requests, too.
func limited(cpu, memory string) corev1.Container {
	c := container0("forever")
	list := corev1.ResourceList{}
	if cpu != "" {
		list[corev1.ResourceCPU] = quantity(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = quantity(memory)
	}
	c.Resources = corev1.ResourceRequirements{Limits: list, Requests: list}
	return c
}

func TestTheLimitsOfAPodAreThoseOfAllItsContainers(t *testing.T) {
	sidecar := limited("100m", "1Mi")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	for name, tc := range map[string]struct {
		init, containers     []corev1.Container
		pod, overhead        corev1.ResourceList
		shares, quota, bytes int64
	}{
		"nothing":                     {containers: []corev1.Container{limited("", "")}, shares: 2},
		"the sum":                     {containers: []corev1.Container{limited("500m", "1Mi"), limited("1", "2Mi")}, shares: 1536, quota: 150_000, bytes: 3 << 20},
		"one container has no limit":  {containers: []corev1.Container{limited("500m", "1Mi"), limited("", "2Mi")}, shares: 512, bytes: 3 << 20},
		"an init container has none":  {init: []corev1.Container{limited("", "1Mi")}, containers: []corev1.Container{limited("500m", "1Mi")}, shares: 512, bytes: 1 << 20},
		"a large init container":      {init: []corev1.Container{limited("2", "4Mi")}, containers: []corev1.Container{limited("500m", "1Mi")}, shares: 2048, quota: 200_000, bytes: 4 << 20},
		"a sidecar":                   {init: []corev1.Container{sidecar}, containers: []corev1.Container{limited("500m", "1Mi")}, shares: 614, quota: 60_000, bytes: 2 << 20},
		"the pod has limits":          {containers: []corev1.Container{limited("500m", ""), limited("", "")}, pod: limited("1", "8Mi").Resources.Limits, shares: 1024, quota: 100_000, bytes: 8 << 20},
		"the pod has a limit of CPU":  {containers: []corev1.Container{limited("500m", "1Mi"), limited("", "")}, pod: limited("1", "").Resources.Limits, shares: 1024, quota: 100_000},
		"the overhead of the sandbox": {containers: []corev1.Container{limited("500m", "1Mi")}, overhead: limited("250m", "1Mi").Resources.Limits, shares: 768, quota: 75_000, bytes: 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod()
			p.Spec.InitContainers, p.Spec.Containers, p.Spec.Overhead = tc.init, tc.containers, tc.overhead
			if tc.pod != nil {
				p.Spec.Resources = &corev1.ResourceRequirements{Limits: tc.pod, Requests: tc.pod}
			}
			if got := podResources(p); got.CpuShares != tc.shares || got.CpuQuota != tc.quota || got.MemoryLimitInBytes != tc.bytes {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestEachPodHasACgroup(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	r.cfg.CgroupParent, r.cfg.Cgroups = "/all", cgroups.Tree(t.TempDir())
	expect := func(when, quota string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(string(r.cfg.Cgroups), "cpu/all/poduid/cpu.cfs_quota_us"))
		if err != nil || string(got) != quota {
			t.Errorf("%s the quota of the pod is %q, %v, want %s", when, got, err, quota)
		}
	}
	made := false
	server.Fail = func(method string) error {
		if method == "RunPodSandbox" {
			_, err := os.Stat(filepath.Join(string(r.cfg.Cgroups), "cpu/all/poduid"))
			made = err == nil
		}
		return nil
	}
	spec := set(t, r, pod(func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{limited("500m", "1Mi"), limited("1", "1Mi")}
	}))
	expect("before the first container", "150000")
	if !made {
		t.Error("the runtime was called before the pod had a cgroup")
	}
	for _, box := range server.Sandboxes {
		if got := box.Config.Linux.CgroupParent; got != "/all/poduid" {
			t.Errorf("the sandbox is below %s", got)
		}
	}
	// The kernel has no container with more than its pod.
	server.Fail = func(method string) error {
		switch method {
		case "CreateContainer":
			expect("before the container runs with less,", "150000")
		case "UpdateContainerResources":
			expect("before the container grows,", "250000")
		}
		return nil
	}
	spec.Pod.Spec.Containers[1] = limited("500m", "1Mi")
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	expect("when the container runs with less,", "100000")
	spec.Pod.Spec.Containers[0] = limited("2", "1Mi")
	if err := r.Resize(t.Context(), spec.ID, spec.Pod, &spec.Pod.Spec.Containers[0]); err != nil {
		t.Fatal(err)
	}
	spec.Pod.Spec.Containers[0] = limited("100m", "1Mi")
	if err := r.Resize(t.Context(), spec.ID, spec.Pod, &spec.Pod.Spec.Containers[0]); err != nil {
		t.Fatal(err)
	}
	expect("after the container has shrunk,", "60000")
}

func TestSlicesOfSystemdAreNotDivided(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	r.cfg.Cgroups = cgroups.Tree(t.TempDir())
	for _, parent := range []string{"", "kubewright.slice", "/kubewright.slice"} {
		r.cfg.CgroupParent = parent
		if got := r.podCgroup("uid"); got != parent {
			t.Errorf("below %q the pod has the cgroup %q", parent, got)
		}
		if err := r.limitPod(pod(), false); err != nil {
			t.Fatal(err)
		}
		if err := r.removePodCgroup(t.Context(), "uid"); err != nil {
			t.Fatal(err)
		}
	}
	if made, err := os.ReadDir(string(r.cfg.Cgroups)); err != nil || len(made) > 0 {
		t.Errorf("%v, %v", made, err)
	}
}
