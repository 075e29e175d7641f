// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// RequestOf returns the amount of a resource that a pod takes, by the rules of the
// scheduler: the request of the pod as a whole or the sum of its containers' requests,
// and its overhead.
func RequestOf(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	q, _ := aggregate(&pod.Spec, name, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests })
	q.Add(pod.Spec.Overhead[name])
	return q
}

// LimitOf returns the limit of a pod for a resource, by the same rules, and reports
// whether the pod or one of its containers has one.
func LimitOf(pod *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	q, ok := aggregate(&pod.Spec, name, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits })
	if ok {
		q.Add(pod.Spec.Overhead[name])
	}
	return q, ok
}

// aggregate returns the quantity for a whole pod, and whether the pod or a container
// names it. If the pod does not, regular containers and sidecars run together, and
// before them each init container with the sidecars that come before it.
func aggregate(spec *corev1.PodSpec, name corev1.ResourceName, of func(*corev1.ResourceRequirements) corev1.ResourceList) (sum resource.Quantity, named bool) {
	if spec.Resources != nil {
		if q, ok := of(spec.Resources)[name]; ok {
			return q.DeepCopy(), true
		}
	}
	var peak resource.Quantity
	for _, c := range containersOf(spec) {
		q, ok := of(&c.Resources)[name]
		if !ok || c.kind == ephemeral {
			continue
		}
		named = true
		if c.kind != initKind {
			sum.Add(q)
			continue
		}
		q = q.DeepCopy()
		q.Add(sum)
		if q.Cmp(peak) > 0 {
			peak = q
		}
	}
	if peak.Cmp(sum) > 0 {
		sum = peak
	}
	return sum, named
}
