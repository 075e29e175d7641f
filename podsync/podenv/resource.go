// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// resourceField returns a request or limit of a container, divided by the divisor
// and rounded up. The container is ref's, or self where ref names none. A limit
// that isn't set is the pod's, else the node's allocatable.
func (p *Pod) resourceField(ref *corev1.ResourceFieldSelector, self *corev1.Container) (string, error) {
	c := self
	if ref.ContainerName != "" {
		var err error
		if c, err = p.container(ref.ContainerName); err != nil {
			return "", err
		}
	}
	if c == nil {
		return "", fmt.Errorf("a resource of no container")
	}
	which, rest, _ := strings.Cut(ref.Resource, ".")
	name := corev1.ResourceName(rest)
	hugePages := strings.HasPrefix(rest, corev1.ResourceHugePagesPrefix)
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
	default:
		if !hugePages {
			return "", fmt.Errorf("no resource %q can be referred to", ref.Resource)
		}
	}
	var q resource.Quantity
	switch which {
	case "requests":
		q = c.Resources.Requests[name]
	case "limits":
		q = c.Resources.Limits[name]
		// Huge pages aren't overcommitted: what isn't set is none.
		if q.IsZero() && !hugePages {
			q = p.limitFromOutside(name)
		}
	default:
		return "", fmt.Errorf("no resource %q can be referred to", ref.Resource)
	}
	return divide(q, ref.Divisor, name == corev1.ResourceCPU)
}

// limitFromOutside returns the limit of a container that sets none.
func (p *Pod) limitFromOutside(name corev1.ResourceName) resource.Quantity {
	if r := p.pod.Spec.Resources; r != nil {
		if q, ok := r.Limits[name]; ok && !q.IsZero() {
			return q
		}
	}
	if p.resolver.cfg.Allocatable == nil {
		return resource.Quantity{}
	}
	return p.resolver.cfg.Allocatable()[name]
}

// divide returns q/divisor, rounded up. Of cpu thousandths count, of all else
// units. No divisor is 1.
func divide(q, divisor resource.Quantity, milli bool) (string, error) {
	if divisor.IsZero() {
		divisor = *resource.NewQuantity(1, resource.DecimalSI)
	}
	n, d := q.Value(), divisor.Value()
	if milli {
		n, d = q.MilliValue(), divisor.MilliValue()
	}
	if n < 0 || d <= 0 {
		return "", fmt.Errorf("%s can't be divided by %s", q.String(), divisor.String())
	}
	quotient := n / d
	if n%d > 0 {
		quotient++
	}
	return strconv.FormatInt(quotient, 10), nil
}
