// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
			r := newRuntime(t, criserver.Start(t))
			r.cfg.CgroupParent, r.cfg.Cgroups = "/all", cgroups.Tree(t.TempDir())
			if err := r.ResizePod(t.Context(), p, false); err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]int64{"cpu/all/poduid/cpu.shares": tc.shares, "cpu/all/poduid/cpu.cfs_quota_us": tc.quota, "memory/all/poduid/memory.limit_in_bytes": tc.bytes} {
				if want == 0 {
					want = -1
				}
				if got, err := os.ReadFile(filepath.Join(string(r.cfg.Cgroups), file)); err != nil || string(got) != strconv.FormatInt(want, 10) {
					t.Errorf("%s is %q, %v, want %d", file, got, err, want)
				}
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
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		cpu   string
		grow  bool
		quota string
	}{{"2", true, "250000"}, {"100m", true, "250000"}, {"100m", false, "60000"}} {
		spec.Pod.Spec.Containers[1] = limited(step.cpu, "1Mi")
		if err := r.ResizePod(t.Context(), spec.Pod, step.grow); err != nil {
			t.Fatal(err)
		}
		expect("with "+step.cpu, step.quota)
	}
}

func TestAnUnknownPodHasNoCgroupToRemove(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	r.cfg.CgroupParent, r.cfg.Cgroups = "/all", cgroups.Tree(t.TempDir())
	dir := filepath.Join(string(r.cfg.Cgroups), "cpu/all/pod")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.removePodCgroup(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestMemoryInUseIsNotTakenAway(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	r.cfg.CgroupParent, r.cfg.Cgroups = "/all", cgroups.Tree(t.TempDir())
	spec := set(t, r, pod(func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{limited("500m", "8Mi")} }))
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	for id := range server.Containers {
		dir := filepath.Join(string(r.cfg.Cgroups), "memory/all/poduid", id)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"memory.limit_in_bytes": "8388608", "memory.usage_in_bytes": "4194304"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for memory, fits := range map[string]bool{"4Mi": false, "5Mi": true} {
		c := limited("500m", memory)
		err := r.Resize(t.Context(), spec.ID, spec.Pod, &c)
		if (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "memory limit (4194304) below current usage (4194304)") {
			t.Errorf("%s: %v", memory, err)
		}
	}
	for _, c := range server.Containers {
		if got := c.Config.Linux.Resources.MemoryLimitInBytes; got != 5<<20 {
			t.Errorf("the limit is %d", got)
		}
	}
}

func TestSlicesOfSystemdAreNotDivided(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	r.cfg.Cgroups = cgroups.Tree(t.TempDir())
	for _, parent := range []string{"", "kubewright.slice", "/kubewright.slice"} {
		r.cfg.CgroupParent = parent
		if got := r.podCgroup("uid"); got != parent {
			t.Errorf("below %q the pod has the cgroup %q", parent, got)
		}
		if err := r.ResizePod(t.Context(), pod(), false); err != nil {
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
