// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// QOSClass returns the quality of service class of a pod with this spec, as the
// API server computes it at creation. It decides who goes first when a node runs
// out of memory. The class is immutable: [Next] doesn't write it.
//
// Only cpu and memory count, zero is unset, and limits stand in for requests that
// are missing. Resources set for the pod as a whole (KEP-2837) take the place of
// its containers'.
func QOSClass(spec *corev1.PodSpec) corev1.PodQOSClass {
	var all []*corev1.ResourceRequirements
	if r := spec.Resources; r != nil && (hasPodLevel(r.Requests) || hasPodLevel(r.Limits)) {
		all = append(all, r)
	} else {
		for i := range spec.Containers {
			all = append(all, &spec.Containers[i].Resources)
		}
		for i := range spec.InitContainers {
			all = append(all, &spec.InitContainers[i].Resources)
		}
	}
	any, guaranteed := false, len(all) > 0
	for _, r := range all {
		any = any || hasCompute(r.Requests) || hasCompute(r.Limits)
		guaranteed = guaranteed && limited(r, corev1.ResourceCPU) && limited(r, corev1.ResourceMemory)
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// hasPodLevel reports whether list names a resource that can be set for a pod as a
// whole.
func hasPodLevel(list corev1.ResourceList) bool {
	for name := range list {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			return true
		}
	}
	return false
}

func hasCompute(list corev1.ResourceList) bool {
	return isSet(list[corev1.ResourceCPU]) || isSet(list[corev1.ResourceMemory])
}

// limited reports whether r has a limit for name that its request, if there is
// one, equals.
func limited(r *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	limit := r.Limits[name]
	request, ok := r.Requests[name]
	return isSet(limit) && (!ok || request.Cmp(limit) == 0)
}

func isSet(q resource.Quantity) bool { return q.Sign() > 0 }
