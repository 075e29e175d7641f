// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// requirements reads "cpu=1/2 memory=1Gi/": request/limit of each resource.
func requirements(s string) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, word := range strings.Fields(s) {
		name, values, _ := strings.Cut(word, "=")
		request, limit, _ := strings.Cut(values, "/")
		if request != "" {
			r.Requests[corev1.ResourceName(name)] = resource.MustParse(request)
		}
		if limit != "" {
			r.Limits[corev1.ResourceName(name)] = resource.MustParse(limit)
		}
	}
	return r
}

func TestQOSClass(t *testing.T) {
	for _, tc := range []struct {
		name       string
		containers []string
		init       string
		pod        string
		want       corev1.PodQOSClass
	}{
		{name: "nothing", containers: []string{""}, want: "BestEffort"},
		{name: "zero", containers: []string{"cpu=0/0"}, want: "BestEffort"},
		{name: "others don't count", containers: []string{"ephemeral-storage=1Gi/1Gi"}, want: "BestEffort"},
		{name: "request", containers: []string{"cpu=1/"}, want: "Burstable"},
		{name: "equal", containers: []string{"cpu=1/1 memory=1Gi/1Gi"}, want: "Guaranteed"},
		{name: "equal by value", containers: []string{"cpu=1000m/1 memory=1Gi/1024Mi"}, want: "Guaranteed"},
		{name: "limits alone", containers: []string{"cpu=/1 memory=/1Gi"}, want: "Guaranteed"},
		{name: "explicit zero request", containers: []string{"cpu=0/1 memory=1Gi/1Gi"}, want: "Burstable"},
		{name: "less than the limit", containers: []string{"cpu=1/2 memory=1Gi/1Gi"}, want: "Burstable"},
		{name: "one resource", containers: []string{"cpu=1/1"}, want: "Burstable"},
		{name: "one of two containers", containers: []string{"cpu=1/1 memory=1Gi/1Gi", ""}, want: "Burstable"},
		{name: "two containers", containers: []string{"cpu=1/1 memory=1Gi/1Gi", "cpu=2/2 memory=1Gi/1Gi"}, want: "Guaranteed"},
		{name: "init containers count", containers: []string{"cpu=1/1 memory=1Gi/1Gi"}, init: "cpu=1/", want: "Burstable"},
		{name: "of the pod", containers: []string{""}, pod: "cpu=1/1 memory=1Gi/1Gi", want: "Guaranteed"},
		{name: "of the pod, over its containers", containers: []string{"cpu=1/1 memory=1Gi/1Gi"}, pod: "cpu=1/2", want: "Burstable"},
		{name: "of the pod, empty", containers: []string{"cpu=1/1 memory=1Gi/1Gi"}, pod: "other=1/1", want: "Guaranteed"},
		{name: "of the pod, huge pages", containers: []string{"cpu=1/1 memory=1Gi/1Gi"}, pod: "hugepages-2Mi=2Mi/2Mi", want: "BestEffort"},
	} {
		var spec corev1.PodSpec
		for _, r := range tc.containers {
			spec.Containers = append(spec.Containers, corev1.Container{Resources: requirements(r)})
		}
		if tc.init != "" {
			spec.InitContainers = []corev1.Container{{Resources: requirements(tc.init)}}
		}
		if tc.pod != "" {
			spec.Resources = new(requirements(tc.pod))
		}
		if got := QOSClass(&spec); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
