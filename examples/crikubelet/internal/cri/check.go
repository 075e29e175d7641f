// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// oldContainerd matches the versions that ignore CDI devices without an error.
var oldContainerd = regexp.MustCompile(`^v?1\.[0-6]\.`)

// Check implements podruntime.Checker.
func (r *Runtime) Check(pod *corev1.Pod) error {
	if name := forbiddenSysctl(pod, r.cfg.Sysctls); name != "" {
		return podsync.Reject("SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed on this node", name))
	}
	if s := pod.Spec.SecurityContext; s != nil && s.SupplementalGroupsPolicy != nil && *s.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return podsync.Reject("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")
	}
	var why []string
	if name, version, _ := strings.Cut(r.lastVersion(), "://"); podruntime.HasClaims(pod) && name == "containerd" && oldContainerd.MatchString(version) {
		why = append(why, "resource claims: containerd "+version+" has no CDI")
	}
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		why = append(why, "hostUsers: this kubelet makes no user namespaces")
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			for _, m := range c.VolumeMounts {
				if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
					why = append(why, fmt.Sprintf("container %s: recursiveReadOnly Enabled", c.Name))
				}
			}
		}
	}
	if len(why) > 0 {
		return errors.New(strings.Join(why, "; "))
	}
	return nil
}
