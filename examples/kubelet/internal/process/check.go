// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podenv"
)

// Check implements podruntime.Checker: a pod that needs isolation is refused.
func (r *Runtime) Check(pod *corev1.Pod) error {
	own, err := ownUser()
	if err != nil {
		return err
	}
	why := own.unsupported(pod)
	if why == "" && r.cfg.CPUs == nil && len(pod.Spec.ResourceClaims) > 0 {
		why = "resource claims: this kubelet has no devices"
	}
	if why == "" && pod.Status.ExtendedResourceClaimStatus != nil {
		why = "a claim for extended resources: this kubelet has CPUs only"
	}
	if why != "" {
		return errors.New(why)
	}
	return nil
}

// A user is the user that everything runs as, with its groups.
type user struct {
	uid    int64
	groups []int64 // the primary one, too
}

// ownUser returns the user of this process.
func ownUser() (user, error) {
	groups, err := os.Getgroups()
	u := user{uid: int64(os.Geteuid()), groups: []int64{int64(os.Getegid())}}
	for _, g := range groups {
		u.groups = append(u.groups, int64(g))
	}
	return u, err
}

// unsupported returns the parts of a pod that processes of this user can't have, or nothing.
func (u user) unsupported(pod *corev1.Pod) string {
	r := refusal{user: u}
	if set(pod.Spec.HostUsers, false) {
		r.add("hostUsers: processes have the users of the machine")
	}
	if name := pod.Spec.RuntimeClassName; name != nil && *name != "" {
		r.add("runtimeClassName %s: there are no handlers", *name)
	}
	if s := pod.Spec.SecurityContext; s != nil {
		r.pod(s)
	}
	data := map[string]bool{}
	for i := range pod.Spec.Volumes {
		data[pod.Spec.Volumes[i].Name] = podenv.IsData(&pod.Spec.Volumes[i])
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r.container(&list[i], data)
		}
	}
	return strings.Join(r.why, "; ")
}

// A refusal collects what a pod can't have.
type refusal struct {
	user
	why []string
}

func (r *refusal) add(format string, args ...any) {
	r.why = append(r.why, fmt.Sprintf(format, args...))
}

// set reports whether a field has a value.
func set[T comparable](field *T, value T) bool { return field != nil && *field == value }

// pod refuses what the security context of a pod asks for.
func (r *refusal) pod(s *corev1.PodSecurityContext) {
	r.identity("pod", s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot)
	r.confinement("pod", s.SeccompProfile, s.AppArmorProfile, s.SELinuxOptions)
	for _, g := range s.SupplementalGroups {
		r.group("pod: supplementalGroups", &g)
	}
	r.group("pod: fsGroup", s.FSGroup)
	if set(s.SupplementalGroupsPolicy, corev1.SupplementalGroupsPolicyStrict) {
		r.add("pod: supplementalGroupsPolicy Strict, but everything has the groups of the kubelet")
	}
	for _, c := range s.Sysctls {
		r.add("pod: sysctl %s, but the kernel's are those of the machine", c.Name)
	}
}

// container refuses what a container asks for. data says which volumes have data of the API.
func (r *refusal) container(c *corev1.Container, data map[string]bool) {
	what := "container " + c.Name
	if len(c.Command) == 0 {
		r.add("%s: no command, and images are not pulled", what)
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil && *l.StopSignal != corev1.SIGTERM {
		r.add("%s: stopSignal %s, but containers are stopped with SIGTERM", what, *l.StopSignal)
	}
	if s := c.SecurityContext; s != nil {
		r.identity(what, s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot)
		r.confinement(what, s.SeccompProfile, s.AppArmorProfile, s.SELinuxOptions)
		if set(s.ReadOnlyRootFilesystem, true) {
			r.add("%s: readOnlyRootFilesystem, but it has the file system of the machine", what)
		}
		if set(s.AllowPrivilegeEscalation, false) {
			r.add("%s: allowPrivilegeEscalation false, but processes may run setuid programs", what)
		}
		if set(s.Privileged, true) && r.uid != 0 {
			r.add("%s: privileged, but everything runs as user %d", what, r.uid)
		}
		if caps := s.Capabilities; caps != nil {
			if len(caps.Drop) > 0 {
				r.add("%s: capabilities.drop, but processes have those of the kubelet", what)
			}
			if len(caps.Add) > 0 && r.uid != 0 { // as root, kubectl debug gets the SYS_PTRACE that it asks for
				r.add("%s: capabilities.add, but everything runs as user %d", what, r.uid)
			}
		}
	}
	var paths []string
	for _, a := range c.VolumeMounts {
		if set(a.RecursiveReadOnly, corev1.RecursiveReadOnlyEnabled) {
			r.add("%s: recursiveReadOnly of the mount at %s", what, a.MountPath)
		} else if a.ReadOnly && !data[a.Name] {
			r.add("%s: readOnly of the mount at %s, but processes can write to it", what, a.MountPath)
		}
		paths = append(paths, strings.TrimSuffix(filepath.Clean(a.MountPath), "/")+"/")
	}
	slices.Sort(paths) // what is inside a mount follows it
	for i, outer := 1, 0; i < len(paths); i++ {
		if paths[i] == paths[outer] || !strings.HasPrefix(paths[i], paths[outer]) {
			outer = i
			continue
		}
		r.add("%s: a mount at %s inside that at %s", what, filepath.Clean(paths[i]), filepath.Clean(paths[outer]))
	}
}

// identity refuses another user or group.
func (r *refusal) identity(what string, uid, gid *int64, nonRoot *bool) {
	if uid != nil && *uid != r.uid {
		r.add("%s: runAsUser %d, but everything runs as user %d", what, *uid, r.uid)
	}
	if gid != nil && *gid != r.groups[0] {
		r.add("%s: runAsGroup %d, but everything runs with group %d", what, *gid, r.groups[0])
	}
	if set(nonRoot, true) && r.uid == 0 {
		r.add("%s: runAsNonRoot, but everything runs as root", what)
	}
}

// group refuses a group that processes are not in.
func (r *refusal) group(what string, gid *int64) {
	if gid != nil && !slices.Contains(r.groups, *gid) {
		r.add("%s %d, but the kubelet is not in that group", what, *gid)
	}
}

// confinement refuses profiles and labels.
func (r *refusal) confinement(what string, seccomp *corev1.SeccompProfile, appArmor *corev1.AppArmorProfile, labels *corev1.SELinuxOptions) {
	if seccomp != nil && seccomp.Type != corev1.SeccompProfileTypeUnconfined {
		r.add("%s: seccompProfile %s, but processes are not confined", what, seccomp.Type)
	}
	if appArmor != nil && appArmor.Type != corev1.AppArmorProfileTypeUnconfined {
		r.add("%s: appArmorProfile %s, but processes are not confined", what, appArmor.Type)
	}
	if labels != nil && *labels != (corev1.SELinuxOptions{}) {
		r.add("%s: seLinuxOptions, but processes have the label of the kubelet", what)
	}
}
