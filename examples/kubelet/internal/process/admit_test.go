// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/podsync"
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
		"gRPC": {func(s *corev1.PodSpec) {
			s.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}
		}, "gRPC"},
		"volume": {func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}
		}, "volume v"},
		"emptyDir": {func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, ""},
		"mount in a mount": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPath: "/a/b"}, {MountPath: "/a/"}}
		}, "/a/b inside"},
		"mounts beside": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPath: "/ab"}, {MountPath: "/a"}}
		}, ""},
		"restart of all": {func(s *corev1.PodSpec) {
			s.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
		}, "RestartAllContainers"},
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

func asking(cpu string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
}

func TestFits(t *testing.T) {
	allocatable := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("3")}
	pod := func(cpu string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{asking(cpu)}}}
	}
	for name, tc := range map[string]struct {
		active []*corev1.Pod
		pod    *corev1.Pod
		want   string
	}{
		"alone":          {nil, pod("2"), ""},
		"too large":      {nil, pod("2001m"), "OutOfcpu"},
		"beside another": {[]*corev1.Pod{pod("500m")}, pod("1500m"), ""},
		"no cpu left":    {[]*corev1.Pod{pod("501m")}, pod("1500m"), "OutOfcpu"},
		"no place left":  {[]*corev1.Pod{pod("0"), pod("0"), pod("0")}, pod("0"), "OutOfpods"},
	} {
		t.Run(name, func(t *testing.T) {
			err := fits(tc.pod, slices.Values(tc.active), allocatable)
			var reject *podsync.RejectError
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("rejected: %v", err)
			case tc.want != "" && (!errors.As(err, &reject) || reject.Reason != tc.want):
				t.Errorf("%v, want a rejection with %s", err, tc.want)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	side := asking("100m")
	side.RestartPolicy = &always
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"sum":                   {corev1.PodSpec{Containers: []corev1.Container{asking("1"), asking("2")}}, "3"},
		"a large init":          {corev1.PodSpec{InitContainers: []corev1.Container{asking("5")}, Containers: []corev1.Container{asking("1")}}, "5"},
		"sidecar":               {corev1.PodSpec{InitContainers: []corev1.Container{side}, Containers: []corev1.Container{asking("1")}}, "1100m"},
		"init beside a sidecar": {corev1.PodSpec{InitContainers: []corev1.Container{side, asking("5")}, Containers: []corev1.Container{asking("1")}}, "5100m"},
		"of the pod":            {corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: asking("7").Resources.Requests}, Containers: []corev1.Container{asking("1")}}, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			got := request(&corev1.Pod{Spec: tc.spec}, corev1.ResourceCPU)
			if want := resource.MustParse(tc.want); got.Cmp(want) != 0 {
				t.Errorf("%s, want %s", got.String(), tc.want)
			}
		})
	}
}
