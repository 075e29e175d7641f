// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// RequestOf returns the amount of a resource that a pod takes, by the rules of the
// scheduler: the request of the pod as a whole or the sum of its containers' requests,
// and its overhead.
func RequestOf(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	q, _ := aggregate(&pod.Spec, name, requestsOf)
	q.Add(pod.Spec.Overhead[name])
	return q
}

func requestsOf(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }

// LimitOf returns the limit of a pod for a resource, by the same rules, and reports
// whether the pod or one of its containers has one.
func LimitOf(pod *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	q, ok := aggregate(&pod.Spec, name, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits })
	if ok {
		q.Add(pod.Spec.Overhead[name])
	}
	return q, ok
}

// PodResources returns the resources of a pod as a whole: the requests of RequestOf, and
// the limits of LimitOf that hold. As with the kubelet, a limit holds if the pod has it,
// or if every container has one.
func PodResources(pod *corev1.Pod) (r corev1.ResourceRequirements) {
	set := func(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = q
	}
	containers := slices.DeleteFunc(containersOf(&pod.Spec), func(c spec) bool { return c.kind == core.Ephemeral })
	all := []corev1.ResourceRequirements{{Requests: pod.Spec.Overhead}}
	if pod.Spec.Resources != nil {
		all = append(all, *pod.Spec.Resources)
	}
	for _, c := range containers {
		all = append(all, c.Resources)
	}
	for i := range all {
		for name := range all[i].Requests {
			set(&r.Requests, name, RequestOf(pod, name))
		}
		for name := range all[i].Limits {
			q, _ := LimitOf(pod, name)
			unlimited := func(c spec) bool { q := ContainerLimit(pod, c.Container, name); return q.Sign() <= 0 }
			if !slices.ContainsFunc(containers, unlimited) {
				set(&r.Limits, name, q)
			}
		}
	}
	return r
}

// ContainerLimit returns the limit of a container for a resource: its own one or, if it
// has none, that of the pod. Zero says that there is no limit.
func ContainerLimit(pod *corev1.Pod, c *corev1.Container, name corev1.ResourceName) resource.Quantity {
	if q := c.Resources.Limits[name]; q.Sign() > 0 || pod.Spec.Resources == nil {
		return q
	}
	return pod.Spec.Resources.Limits[name]
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
		if !ok || c.kind == core.Ephemeral {
			continue
		}
		named = true
		if c.kind != core.Init {
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
