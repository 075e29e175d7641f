// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Check implements podruntime.Checker: a pod that needs isolation is refused.
func (r *Runtime) Check(pod *corev1.Pod) error {
	why := unsupported(pod, int64(os.Geteuid()))
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

// unsupported returns the parts of a pod that processes can't have, or nothing. uid is
// the user that everything runs as.
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
	if h := pod.Spec.HostUsers; h != nil && !*h {
		add("hostUsers: processes have the users of the machine")
	}
	if s := pod.Spec.SecurityContext; s != nil {
		user("pod", s.RunAsUser, s.RunAsNonRoot)
	}
	check := func(c *corev1.Container) {
		what := "container " + c.Name
		if len(c.Command) == 0 {
			add("%s: no command, and images are not pulled", what)
		}
		if s := c.SecurityContext; s != nil {
			user(what, s.RunAsUser, s.RunAsNonRoot)
			if s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem {
				add("%s: readOnlyRootFilesystem, but it has the file system of the machine", what)
			}
		}
		for _, a := range c.VolumeMounts {
			if r := a.RecursiveReadOnly; r != nil && *r == corev1.RecursiveReadOnlyEnabled {
				add("%s: recursiveReadOnly of the mount at %s", what, a.MountPath)
			}
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
