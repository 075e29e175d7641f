// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestUnsupported(t *testing.T) {
	ok := corev1.Container{Name: "c", Command: []string{"true"}}
	for name, tc := range map[string]struct {
		change func(*corev1.PodSpec)
		want   string // part of the message; empty: it is supported
	}{
		"plain":        {func(*corev1.PodSpec) {}, ""},
		"own user":     {func(s *corev1.PodSpec) { s.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1000))} }, ""},
		"another user": {func(s *corev1.PodSpec) { s.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))} }, "runAsUser 0"},
		"not root": {func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsNonRoot: new(true)}
		}, ""},
		"no command":           {func(s *corev1.PodSpec) { s.Containers[0].Command = nil }, "container c: no command"},
		"init without command": {func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{Name: "i"}} }, "container i: no command"},
		"readOnlyRootFilesystem": {func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)}
		}, "readOnlyRootFilesystem"},
		"root file system that can be written": {func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: new(false)}
		}, ""},
		"mount in a mount": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPath: "/a/b"}, {MountPath: "/a/"}}
		}, "/a/b inside"},
		"a user namespace":    {func(s *corev1.PodSpec) { s.HostUsers = new(false) }, "hostUsers"},
		"the machine's users": {func(s *corev1.PodSpec) { s.HostUsers = new(true) }, ""},
		"recursiveReadOnly": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPath: "/a", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)}}
		}, "recursiveReadOnly of the mount at /a"},
		"recursiveReadOnly if possible": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPath: "/a", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible)}}
		}, ""},
		"mounts beside": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPath: "/ab"}, {MountPath: "/a"}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{ok}}}
			tc.change(&pod.Spec)
			got := unsupported(pod, 1000)
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	root := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true)}, Containers: []corev1.Container{ok}}}
	if why := unsupported(root, 0); !strings.Contains(why, "runAsNonRoot") {
		t.Errorf("runAsNonRoot under root: %q", why)
	}
}
