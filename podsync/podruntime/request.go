// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
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
func limitsOf(r *corev1.ResourceRequirements) corev1.ResourceList   { return r.Limits }

// LimitOf returns the limit of a pod for a resource, by the same rules, and reports
// whether the pod or one of its containers has one.
func LimitOf(pod *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	q, ok := aggregate(&pod.Spec, name, limitsOf)
	if ok {
		q.Add(pod.Spec.Overhead[name])
	}
	return q, ok
}

// PodResources returns the resources of a pod as a whole: the requests of RequestOf, and
// the limits of LimitOf that hold. As with the kubelet, a limit holds if the pod has it,
// or if every container has one.
func PodResources(pod *corev1.Pod) (r corev1.ResourceRequirements) {
	var containers int
	limited := map[corev1.ResourceName]int{} // containers with a limit of their own
	for _, c := range containersOf(&pod.Spec) {
		if c.kind == core.Ephemeral {
			continue
		}
		containers++
		for name, q := range c.Resources.Limits {
			if q.Sign() > 0 {
				limited[name]++
			}
		}
	}
	for name, q := range aggregates(&pod.Spec, requestsOf) {
		put(&r.Requests, name, q)
	}
	for name, q := range pod.Spec.Overhead {
		q = q.DeepCopy()
		q.Add(r.Requests[name])
		put(&r.Requests, name, q)
	}
	for name, q := range aggregates(&pod.Spec, limitsOf) {
		own := resource.Quantity{}
		if pod.Spec.Resources != nil {
			own = pod.Spec.Resources.Limits[name]
		}
		if own.Sign() > 0 || limited[name] == containers {
			q.Add(pod.Spec.Overhead[name])
			put(&r.Limits, name, q)
		}
	}
	return r
}

func put(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q
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
// names it.
func aggregate(spec *corev1.PodSpec, name corev1.ResourceName, of func(*corev1.ResourceRequirements) corev1.ResourceList) (q resource.Quantity, named bool) {
	q, named = aggregates(spec, func(r *corev1.ResourceRequirements) corev1.ResourceList {
		if q, ok := of(r)[name]; ok {
			return corev1.ResourceList{name: q}
		}
		return nil
	})[name]
	return q, named
}

// aggregates returns the quantities for a whole pod, of all resources that the pod or a container
// names. If the pod does not name one, regular containers and sidecars run together, and
// before them each init container with the sidecars that come before it.
func aggregates(spec *corev1.PodSpec, of func(*corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
	sums, peaks := corev1.ResourceList{}, corev1.ResourceList{}
	for _, c := range containersOf(spec) {
		if c.kind == core.Ephemeral {
			continue
		}
		for name, q := range of(&c.Resources) {
			total := sums[name].DeepCopy()
			total.Add(q)
			if c.kind != core.Init {
				sums[name] = total
			} else if peak, ok := peaks[name]; !ok || total.Cmp(peak) > 0 {
				peaks[name] = total
			}
		}
	}
	for name, peak := range peaks {
		if sum, ok := sums[name]; !ok || peak.Cmp(sum) > 0 {
			sums[name] = peak
		}
	}
	if spec.Resources != nil {
		for name, q := range of(spec.Resources) {
			sums[name] = q.DeepCopy()
		}
	}
	return sums
}
