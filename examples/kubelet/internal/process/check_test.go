// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// podWith returns a pod of one container that is supported, with a change.
func podWith(change func(*corev1.PodSpec, *corev1.Container)) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Command: []string{"true"}}}}}
	change(&pod.Spec, &pod.Spec.Containers[0])
	return pod
}

// A judgement is a pod and a part of the message that rejects it, empty if it is supported.
type judgement struct {
	change func(*corev1.PodSpec, *corev1.Container)
	want   string
}

func judge(t *testing.T, table map[string]judgement) {
	t.Helper()
	own := user{uid: 1000, groups: []int64{100, 27}}
	for name, tc := range table {
		t.Run(name, func(t *testing.T) {
			got := own.unsupported(podWith(tc.change))
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestUnsupported(t *testing.T) {
	mounts := func(list ...corev1.VolumeMount) func(*corev1.PodSpec, *corev1.Container) {
		return func(s *corev1.PodSpec, c *corev1.Container) {
			s.Volumes = []corev1.Volume{
				{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}},
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
			}
			c.VolumeMounts = list
		}
	}
	stop := func(name corev1.Signal) func(*corev1.PodSpec, *corev1.Container) {
		return func(_ *corev1.PodSpec, c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{StopSignal: &name} }
	}
	judge(t, map[string]judgement{
		"plain":                         {func(*corev1.PodSpec, *corev1.Container) {}, ""},
		"no command":                    {func(_ *corev1.PodSpec, c *corev1.Container) { c.Command = nil }, "container c: no command"},
		"init without command":          {func(s *corev1.PodSpec, _ *corev1.Container) { s.InitContainers = []corev1.Container{{Name: "i"}} }, "container i: no command"},
		"a user namespace":              {func(s *corev1.PodSpec, _ *corev1.Container) { s.HostUsers = new(false) }, "hostUsers"},
		"the machine's users":           {func(s *corev1.PodSpec, _ *corev1.Container) { s.HostUsers = new(true) }, ""},
		"a runtime class":               {func(s *corev1.PodSpec, _ *corev1.Container) { s.RuntimeClassName = new("gvisor") }, "runtimeClassName gvisor"},
		"no runtime class":              {func(s *corev1.PodSpec, _ *corev1.Container) { s.RuntimeClassName = new("") }, ""},
		"namespaces of the machine":     {func(s *corev1.PodSpec, _ *corev1.Container) { s.HostNetwork, s.HostPID, s.HostIPC = true, true, true }, ""},
		"another signal":                {stop(corev1.SIGQUIT), "container c: stopSignal SIGQUIT"},
		"the signal":                    {stop(corev1.SIGTERM), ""},
		"a hook without a signal":       {func(_ *corev1.PodSpec, c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }, ""},
		"a mount in a mount":            {mounts(corev1.VolumeMount{MountPath: "/a/b"}, corev1.VolumeMount{MountPath: "/a/"}), "/a/b inside that at /a"},
		"a mount in a mount, later":     {mounts(corev1.VolumeMount{MountPath: "/a/b/c"}, corev1.VolumeMount{MountPath: "/a-b"}, corev1.VolumeMount{MountPath: "/a"}), "/a/b/c inside that at /a"},
		"a mount in the root":           {mounts(corev1.VolumeMount{MountPath: "/"}, corev1.VolumeMount{MountPath: "/a"}), "/a inside that at /"},
		"mounts beside":                 {mounts(corev1.VolumeMount{MountPath: "/ab"}, corev1.VolumeMount{MountPath: "/a"}, corev1.VolumeMount{MountPath: "/a-b/c"}), ""},
		"readOnly":                      {mounts(corev1.VolumeMount{Name: "host", MountPath: "/a", ReadOnly: true}), "readOnly of the mount at /a"},
		"readOnly data of the API":      {mounts(corev1.VolumeMount{Name: "config", MountPath: "/a", ReadOnly: true}), ""},
		"recursiveReadOnly":             {mounts(corev1.VolumeMount{Name: "config", MountPath: "/a", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)}), "recursiveReadOnly of the mount at /a"},
		"recursiveReadOnly if possible": {mounts(corev1.VolumeMount{Name: "config", MountPath: "/a", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible)}), ""},
	})
}

// TestSecurityContexts has each field of a container's security context, and of a pod's: what processes
// can't have is refused.
func TestSecurityContexts(t *testing.T) {
	const machine = "what the machine has" // supported: it asks for no more
	localhost := new("profile.json")
	containers := map[string][]struct {
		s    corev1.SecurityContext
		want string
	}{
		"Capabilities": {
			{corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}, "container c: capabilities.drop"},
			{corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}, "container c: capabilities.add"},
			{corev1.SecurityContext{Capabilities: &corev1.Capabilities{}}, machine},
		},
		"Privileged":     {{corev1.SecurityContext{Privileged: new(true)}, "container c: privileged"}, {corev1.SecurityContext{Privileged: new(false)}, machine}},
		"SELinuxOptions": {{corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}, "container c: seLinuxOptions"}, {corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}, machine}},
		"WindowsOptions": {{corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}}, machine}}, // of another operating system
		"RunAsUser":      {{corev1.SecurityContext{RunAsUser: new(int64(0))}, "container c: runAsUser 0"}, {corev1.SecurityContext{RunAsUser: new(int64(1000))}, machine}},
		"RunAsGroup": {
			{corev1.SecurityContext{RunAsGroup: new(int64(27))}, "container c: runAsGroup 27"}, // not the primary one
			{corev1.SecurityContext{RunAsGroup: new(int64(100))}, machine},
		},
		"RunAsNonRoot":             {{corev1.SecurityContext{RunAsNonRoot: new(true)}, machine}},
		"ReadOnlyRootFilesystem":   {{corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)}, "container c: readOnlyRootFilesystem"}, {corev1.SecurityContext{ReadOnlyRootFilesystem: new(false)}, machine}},
		"AllowPrivilegeEscalation": {{corev1.SecurityContext{AllowPrivilegeEscalation: new(false)}, "container c: allowPrivilegeEscalation"}, {corev1.SecurityContext{AllowPrivilegeEscalation: new(true)}, machine}},
		"ProcMount":                {{corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount)}, machine}, {corev1.SecurityContext{ProcMount: new(corev1.DefaultProcMount)}, machine}},
		"SeccompProfile": {
			{corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}, "container c: seccompProfile RuntimeDefault"},
			{corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: localhost}}, "container c: seccompProfile Localhost"},
			{corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}, machine},
		},
		"AppArmorProfile": {
			{corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}, "container c: appArmorProfile RuntimeDefault"},
			{corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}}, machine},
		},
	}
	pods := map[string][]struct {
		s    corev1.PodSecurityContext
		want string
	}{
		"SELinuxOptions": {{corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Type: "t"}}, "pod: seLinuxOptions"}},
		"WindowsOptions": {{corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}}, machine}},
		"RunAsUser":      {{corev1.PodSecurityContext{RunAsUser: new(int64(0))}, "pod: runAsUser 0"}, {corev1.PodSecurityContext{RunAsUser: new(int64(1000))}, machine}},
		"RunAsGroup":     {{corev1.PodSecurityContext{RunAsGroup: new(int64(0))}, "pod: runAsGroup 0"}, {corev1.PodSecurityContext{RunAsGroup: new(int64(100))}, machine}},
		"RunAsNonRoot":   {{corev1.PodSecurityContext{RunAsNonRoot: new(true)}, machine}},
		"SupplementalGroups": {
			{corev1.PodSecurityContext{SupplementalGroups: []int64{27, 28}}, "pod: supplementalGroups 28"},
			{corev1.PodSecurityContext{SupplementalGroups: []int64{27, 100}}, machine},
		},
		"SupplementalGroupsPolicy": {
			{corev1.PodSecurityContext{SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict)}, "pod: supplementalGroupsPolicy Strict"},
			{corev1.PodSecurityContext{SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyMerge)}, machine},
		},
		"FSGroup":             {{corev1.PodSecurityContext{FSGroup: new(int64(28))}, "pod: fsGroup 28"}, {corev1.PodSecurityContext{FSGroup: new(int64(27))}, machine}},
		"Sysctls":             {{corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn"}}}, "pod: sysctl net.core.somaxconn"}},
		"FSGroupChangePolicy": {{corev1.PodSecurityContext{FSGroupChangePolicy: new(corev1.FSGroupChangeAlways)}, machine}}, // podruntime always applies the group
		"SeccompProfile":      {{corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}, "pod: seccompProfile RuntimeDefault"}},
		"AppArmorProfile":     {{corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: localhost}}, "pod: appArmorProfile Localhost"}},
		"SELinuxChangePolicy": {{corev1.PodSecurityContext{SELinuxChangePolicy: new(corev1.SELinuxChangePolicyRecursive)}, machine}}, // there is no relabeling
	}
	table := map[string]judgement{}
	add := func(name, want string, change func(*corev1.PodSpec, *corev1.Container)) {
		if want == machine {
			want = ""
		}
		table[name] = judgement{change, want}
	}
	for field := range reflect.TypeFor[corev1.SecurityContext]().Fields() {
		if len(containers[field.Name]) == 0 {
			t.Errorf("%s of a container: not decided", field.Name)
		}
		for i, tc := range containers[field.Name] {
			add(fmt.Sprint("container ", field.Name, " ", i), tc.want, func(_ *corev1.PodSpec, c *corev1.Container) { c.SecurityContext = &tc.s })
		}
	}
	for field := range reflect.TypeFor[corev1.PodSecurityContext]().Fields() {
		if len(pods[field.Name]) == 0 {
			t.Errorf("%s of a pod: not decided", field.Name)
		}
		for i, tc := range pods[field.Name] {
			add(fmt.Sprint("pod ", field.Name, " ", i), tc.want, func(s *corev1.PodSpec, _ *corev1.Container) { s.SecurityContext = &tc.s })
		}
	}
	judge(t, table)

	root := user{groups: []int64{0}}
	for what, tc := range map[string]struct {
		s    corev1.SecurityContext
		want string
	}{
		"runAsNonRoot":  {corev1.SecurityContext{RunAsNonRoot: new(true)}, "container c: runAsNonRoot"},
		"privileged":    {corev1.SecurityContext{Privileged: new(true)}, ""},
		"kubectl debug": {corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE"}}}, ""},
		"fewer":         {corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}, "container c: capabilities.drop"},
	} {
		got := root.unsupported(podWith(func(_ *corev1.PodSpec, c *corev1.Container) { c.SecurityContext = &tc.s }))
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s under root: %q, want %q", what, got, tc.want)
		}
	}
}

func TestOwnUser(t *testing.T) {
	u, err := ownUser()
	if err != nil || u.uid != int64(os.Geteuid()) || u.groups[0] != int64(os.Getegid()) {
		t.Errorf("%+v, %v", u, err)
	}
}
