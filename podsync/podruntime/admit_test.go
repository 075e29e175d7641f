// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/podsync"
)

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
			err := fits(tc.pod, slices.Values(tc.active), func() corev1.ResourceList { return allocatable })
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
