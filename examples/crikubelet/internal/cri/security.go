// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The paths of /proc and /sys that a container with procMount Default can't read or
// can't write. Runtimes hide nothing of their own accord.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// namespacesOf returns the namespaces that the containers of a pod share.
func namespacesOf(pod *corev1.Pod) *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if share := pod.Spec.ShareProcessNamespace; share != nil && *share {
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	if pod.Spec.HostPID {
		n.Pid = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	return n
}

// contexts returns the security contexts of a pod and a container, never nil.
func contexts(pod *corev1.Pod, c *corev1.Container) (*corev1.PodSecurityContext, *corev1.SecurityContext) {
	p, s := pod.Spec.SecurityContext, (*corev1.SecurityContext)(nil)
	if c != nil {
		s = c.SecurityContext
	}
	if p == nil {
		p = &corev1.PodSecurityContext{}
	}
	if s == nil {
		s = &corev1.SecurityContext{}
	}
	return p, s
}

// or returns the first of two pointers that is not nil.
func or[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

func isTrue(b *bool) bool { return b != nil && *b }

func value(n *int64) *runtimeapi.Int64Value {
	if n == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *n}
}

// containerSecurity returns the security context of a container. The fields of the
// container win over those of the pod.
func (r *Runtime) containerSecurity(pod *corev1.Pod, c *corev1.Container, image *runtimeapi.Image) (*runtimeapi.LinuxContainerSecurityContext, error) {
	p, s := contexts(pod, c)
	user := or(s.RunAsUser, p.RunAsUser)
	if isTrue(or(s.RunAsNonRoot, p.RunAsNonRoot)) {
		if err := mustNotBeRoot(user, image); err != nil {
			return nil, fmt.Errorf("container %s: %w", c.Name, err)
		}
	}
	seccomp, err := r.seccomp(or(s.SeccompProfile, p.SeccompProfile))
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", c.Name, err)
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:   namespacesOf(pod),
		Privileged:         isTrue(s.Privileged),
		ReadonlyRootfs:     isTrue(s.ReadOnlyRootFilesystem),
		NoNewPrivs:         s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation,
		RunAsUser:          value(user),
		RunAsGroup:         value(or(s.RunAsGroup, p.RunAsGroup)),
		SupplementalGroups: supplementalGroups(p),
		Seccomp:            seccomp,
		Apparmor:           appArmor(or(s.AppArmorProfile, p.AppArmorProfile)),
		SelinuxOptions:     selinux(or(s.SELinuxOptions, p.SELinuxOptions)),
		MaskedPaths:        maskedPaths,
		ReadonlyPaths:      readonlyPaths,
	}
	if user == nil { // a group alone is refused, so the image's user is named
		out.RunAsUser, out.RunAsUsername = image.Uid, image.Username
	}
	if caps := s.Capabilities; caps != nil {
		out.Capabilities = &runtimeapi.Capability{}
		for _, name := range caps.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(name))
		}
		for _, name := range caps.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(name))
		}
	}
	if m := s.ProcMount; m != nil && *m == corev1.UnmaskedProcMount || out.Privileged {
		out.MaskedPaths, out.ReadonlyPaths = nil, nil
	}
	return out, nil
}

// sandboxSecurity returns the security context of a sandbox.
func (r *Runtime) sandboxSecurity(pod *corev1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	p, _ := contexts(pod, nil)
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:   namespacesOf(pod),
		RunAsUser:          value(p.RunAsUser),
		SupplementalGroups: supplementalGroups(p),
		// Its only process waits; the profiles of containers are theirs.
		Seccomp:        &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		SelinuxOptions: selinux(p.SELinuxOptions),
		Privileged:     privileged(pod),
	}
	if p.RunAsUser != nil {
		out.RunAsGroup = value(p.RunAsGroup)
	}
	return out
}

// privileged reports whether a container of the pod is privileged: its sandbox must
// be, too.
func privileged(pod *corev1.Pod) bool {
	is := func(c corev1.Container) bool {
		return c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged)
	}
	return slices.ContainsFunc(pod.Spec.InitContainers, is) || slices.ContainsFunc(pod.Spec.Containers, is)
}

// mustNotBeRoot returns an error if a container would run as root, or if that can't
// be seen.
func mustNotBeRoot(user *int64, image *runtimeapi.Image) error {
	switch {
	case user != nil && *user == 0:
		return errors.New("container's runAsUser breaks non-root policy")
	case user != nil:
		return nil
	case image.Uid != nil && image.Uid.Value == 0 || image.Uid == nil && image.Username == "":
		return errors.New("container has runAsNonRoot and image will run as root")
	case image.Uid == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", image.Username)
	}
	return nil
}

func supplementalGroups(p *corev1.PodSecurityContext) []int64 {
	groups := slices.Clone(p.SupplementalGroups)
	if p.FSGroup != nil {
		groups = append(groups, *p.FSGroup)
	}
	return groups
}

// seccomp returns a seccomp profile; none means unconfined.
func (r *Runtime) seccomp(p *corev1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	switch {
	case p == nil || p.Type == corev1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case p.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case r.cfg.SeccompDir == "" || p.LocalhostProfile == nil || !filepath.IsLocal(*p.LocalhostProfile):
		return nil, errors.New("the seccomp profile of type Localhost is not on this node")
	}
	return &runtimeapi.SecurityProfile{
		ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(r.cfg.SeccompDir, *p.LocalhostProfile),
	}, nil
}

// appArmor returns an AppArmor profile, nil for the runtime's default if the kernel
// has AppArmor.
func appArmor(p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	switch {
	case p == nil:
		return nil
	case p.Type == corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case p.Type == corev1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// safeSysctls are namespaced and can't harm other pods, so every pod may set them.
// Those of the network need a network of the pod.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// forbiddenSysctl returns a sysctl that the pod may not set, or nothing.
func forbiddenSysctl(pod *corev1.Pod, allowed []string) string {
	p, _ := contexts(pod, nil)
	for _, s := range p.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		if strings.HasPrefix(name, "net.") && pod.Spec.HostNetwork || strings.HasPrefix(name, "kernel.") && pod.Spec.HostIPC {
			return s.Name
		}
		permits := func(pattern string) bool {
			prefix, wild := strings.CutSuffix(pattern, "*")
			return name == pattern || wild && strings.HasPrefix(name, prefix)
		}
		if !slices.Contains(safeSysctls, name) && !slices.ContainsFunc(allowed, permits) {
			return s.Name
		}
	}
	return ""
}
