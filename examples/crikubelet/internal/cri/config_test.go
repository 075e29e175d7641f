// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func TestResources(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = quantity(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = quantity(memory)
		}
		return l
	}
	for name, tc := range map[string]struct {
		requests, limits, pod        corev1.ResourceList
		shares, quota, bytes, oomAdj int64
	}{
		"nothing":               {nil, nil, nil, 2, 0, 0, 1000},
		"a request":             {list("500m", "256Mi"), nil, nil, 512, 0, 0, 750},
		"a limit is a request":  {nil, list("2", "512Mi"), nil, 2048, 200_000, 512 << 20, -997},
		"guaranteed":            {list("1", "512Mi"), list("1", "512Mi"), nil, 1024, 100_000, 512 << 20, -997},
		"a small limit":         {nil, list("1m", ""), nil, 2, 1000, 0, 999},
		"all memory":            {list("", "2Gi"), nil, nil, 2, 0, 0, 3},
		"the limits of the pod": {list("100m", ""), nil, list("1", "1Gi"), 102, 100_000, 1 << 30, -997},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod()
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
			if tc.pod != nil {
				p.Spec.Resources = &corev1.ResourceRequirements{Limits: tc.pod}
			}
			got := resources(p, &p.Spec.Containers[0], 1<<30)
			if got.CpuShares != tc.shares || got.CpuQuota != tc.quota || got.MemoryLimitInBytes != tc.bytes || got.OomScoreAdj != tc.oomAdj {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestContainerSecurity(t *testing.T) {
	root, user := &runtimeapi.Image{Id: "root"}, &runtimeapi.Image{Id: "user", Uid: &runtimeapi.Int64Value{Value: 1000}}
	named := &runtimeapi.Image{Id: "named", Username: "www"}
	r := newRuntime(t, criserver.Start(t))
	for name, tc := range map[string]struct {
		pod       corev1.PodSecurityContext
		container corev1.SecurityContext
		image     *runtimeapi.Image
		check     func(*runtimeapi.LinuxContainerSecurityContext) bool
		err       string
	}{
		"nothing: /proc is masked": {image: root, check: func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return slices.Contains(s.MaskedPaths, "/proc/kcore") && slices.Contains(s.ReadonlyPaths, "/proc/sys") && !s.Privileged && !s.NoNewPrivs &&
				s.Seccomp.ProfileType == runtimeapi.SecurityProfile_Unconfined && s.RunAsUser == nil
		}},
		"the container's user wins": {
			pod: corev1.PodSecurityContext{RunAsUser: new(int64(1)), RunAsGroup: new(int64(2)), FSGroup: new(int64(3)), SupplementalGroups: []int64{4}}, container: corev1.SecurityContext{RunAsUser: new(int64(5))},
			image: root, check: func(s *runtimeapi.LinuxContainerSecurityContext) bool {
				return s.RunAsUser.Value == 5 && s.RunAsGroup.Value == 2 && slices.Equal(s.SupplementalGroups, []int64{4, 3})
			},
		},
		"a group has the user of the image": {container: corev1.SecurityContext{RunAsGroup: new(int64(2))}, image: user, check: func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.RunAsUser.Value == 1000 && s.RunAsGroup.Value == 2
		}},
		"privileged: nothing is masked": {container: corev1.SecurityContext{Privileged: new(true)}, image: root, check: func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.Privileged && s.MaskedPaths == nil && s.ReadonlyPaths == nil
		}},
		"no escalation": {container: corev1.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true)}, image: root, check: func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.NoNewPrivs && s.ReadonlyRootfs
		}},
		"capabilities": {container: corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}}}, image: root, check: func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return slices.Equal(s.Capabilities.AddCapabilities, []string{"NET_ADMIN"}) && slices.Equal(s.Capabilities.DropCapabilities, []string{"ALL"})
		}},
		"seccomp of the container wins": {
			pod:       corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			container: corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}},
			image:     root, check: func(s *runtimeapi.LinuxContainerSecurityContext) bool {
				return s.Seccomp.ProfileType == runtimeapi.SecurityProfile_Unconfined
			},
		},
		"a seccomp profile that is not here":   {pod: corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: new("../x")}}, image: root, err: "not on this node"},
		"runAsNonRoot, runAsUser 0":            {pod: corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(0))}, image: user, err: "runAsUser breaks non-root policy"},
		"runAsNonRoot, runAsUser 7":            {pod: corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(7))}, image: root},
		"runAsNonRoot, the image says nothing": {pod: corev1.PodSecurityContext{RunAsNonRoot: new(true)}, image: root, err: "will run as root"},
		"runAsNonRoot, the image has a user":   {pod: corev1.PodSecurityContext{RunAsNonRoot: new(true)}, image: user},
		"runAsNonRoot, the image has a name":   {pod: corev1.PodSecurityContext{RunAsNonRoot: new(true)}, image: named, err: "cannot verify"},
		"runAsNonRoot false in the container":  {pod: corev1.PodSecurityContext{RunAsNonRoot: new(true)}, container: corev1.SecurityContext{RunAsNonRoot: new(false)}, image: root},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(func(p *corev1.Pod) {
				p.Spec.SecurityContext, p.Spec.Containers[0].SecurityContext = &tc.pod, &tc.container
			})
			got, err := r.containerSecurity(p, &p.Spec.Containers[0], tc.image)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || tc.check != nil && !tc.check(got) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestNamespaces(t *testing.T) {
	for name, tc := range map[string]struct {
		change            func(*corev1.PodSpec)
		network, pid, ipc runtimeapi.NamespaceMode
	}{
		"own":         {func(*corev1.PodSpec) {}, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD},
		"shared":      {func(s *corev1.PodSpec) { s.ShareProcessNamespace = new(true) }, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_POD},
		"of the host": {func(s *corev1.PodSpec) { s.HostNetwork, s.HostPID, s.HostIPC = true, true, true }, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE},
	} {
		p := pod(func(p *corev1.Pod) { tc.change(&p.Spec) })
		if got := namespacesOf(p); got.Network != tc.network || got.Pid != tc.pid || got.Ipc != tc.ipc {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestSysctls(t *testing.T) {
	for _, tc := range []struct {
		name        string
		hostNetwork bool
		forbidden   bool
	}{
		{"kernel.shm_rmid_forced", false, false},
		{"net.ipv4.tcp_syncookies", false, false},
		{"net.ipv4.tcp_syncookies", true, true},
		{"net/ipv4/tcp_syncookies", false, false},
		{"kernel.msgmax", false, true},
		{"net.core.somaxconn", false, false},
		{"net.core", false, true},
		{"vm.swappiness", false, true},
	} {
		p := pod(func(p *corev1.Pod) {
			p.Spec.HostNetwork = tc.hostNetwork
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: tc.name, Value: "1"}}}
		})
		if got := forbiddenSysctl(p, []string{"net.core.*"}); (got != "") != tc.forbidden {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

func TestContainerConfig(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	p := pod(func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.WorkingDir, c.TTY, c.Stdin = "/work", true, true
		p.Annotations = map[string]string{"cdi.k8s.io/x": "example.com/device=0"} // a device that the pod has no claim of
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 53, HostPort: 5353, HostIP: "127.0.0.1", Protocol: corev1.ProtocolUDP}}
	})
	spec := set(t, r, p)
	spec.Environment.Vars = []podenv.Var{{Name: "A", Value: "b"}}
	spec.Mounts = []podruntime.Mount{{HostPath: "/h", ContainerPath: "/c", ReadOnly: true, Propagation: corev1.MountPropagationBidirectional}}
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	for _, c := range server.Containers {
		if c.Config.WorkingDir != "/work" || !c.Config.Tty || !c.Config.Stdin || c.Config.LogPath != "main/0.log" || c.Config.Image.Image != "sha256:none" ||
			len(c.Config.Envs) != 1 || string(c.Config.Envs[0].Value) != "b" {
			t.Errorf("%v", c.Config)
		}
		if len(c.Config.Annotations) > 0 {
			t.Errorf("the container has the annotations %v", c.Config.Annotations)
		}
		if m := c.Config.Mounts; len(m) != 1 || !m[0].Readonly || m[0].HostPath != "/h" || m[0].Propagation != runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
			t.Errorf("%v", m)
		}
	}
	for _, b := range server.Sandboxes {
		if len(b.Config.Annotations) != 1 {
			t.Errorf("the sandbox has the annotations %v", b.Config.Annotations)
		}
		ports := b.Config.PortMappings
		if len(ports) != 1 || ports[0].HostPort != 5353 || ports[0].Protocol != runtimeapi.Protocol_UDP || ports[0].HostIp != "127.0.0.1" {
			t.Errorf("%v", ports)
		}
	}
}

func TestAnEphemeralContainerSeesItsTarget(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	p := pod(func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "none:1"}, TargetContainerName: "main",
		}}
	})
	main := set(t, r, p)
	debug := main
	debug.ID.Name, debug.Container, debug.Dir = "debug", (*corev1.Container)(&p.Spec.EphemeralContainers[0].EphemeralContainerCommon), t.TempDir()
	if err := r.Start(t.Context(), debug); err == nil {
		t.Error("it was started before its target")
	}
	if err := r.Start(t.Context(), main); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), debug); err != nil {
		t.Fatal(err)
	}
	for _, c := range server.Containers {
		n := c.Config.Linux.SecurityContext.NamespaceOptions
		if target := c.Config.Metadata.Name == "debug"; target != (n.Pid == runtimeapi.NamespaceMode_TARGET) || target != (n.TargetId != "") {
			t.Errorf("%s: %v", c.Config.Metadata.Name, n)
		}
	}
}

func TestPodsThatThisRuntimeCantRun(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	for name, change := range map[string]func(*corev1.PodSpec){
		"hostUsers": func(s *corev1.PodSpec) { s.HostUsers = new(false) },
		"sysctl": func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "vm.swappiness"}}}
		},
		"SupplementalGroupsPolicyNotSupported": func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict)}
		},
		"recursiveReadOnly": func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)}}
		},
	} {
		if err := r.Check(pod(func(p *corev1.Pod) { change(&p.Spec) })); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Check(pod()); err != nil {
		t.Error(err)
	}
}
