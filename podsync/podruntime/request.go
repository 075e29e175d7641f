// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// request returns how much of a resource a pod takes, by the rules of the
// scheduler: regular containers and sidecars run together, and before them each
// init container with the sidecars that come before it.
func request(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	if r := pod.Spec.Resources; r != nil {
		if q, ok := r.Requests[name]; ok {
			q = q.DeepCopy()
			q.Add(pod.Spec.Overhead[name])
			return q
		}
	}
	var sidecars, peak, sum resource.Quantity
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podstatus.IsSidecar(c) {
			sidecars.Add(c.Resources.Requests[name])
			continue
		}
		with := sidecars.DeepCopy()
		with.Add(c.Resources.Requests[name])
		if with.Cmp(peak) > 0 {
			peak = with
		}
	}
	sum = sidecars
	for i := range pod.Spec.Containers {
		sum.Add(pod.Spec.Containers[i].Resources.Requests[name])
	}
	if peak.Cmp(sum) > 0 {
		sum = peak
	}
	sum.Add(pod.Spec.Overhead[name])
	return sum
}
