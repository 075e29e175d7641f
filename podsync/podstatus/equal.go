// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
)

// Equal reports whether the API stores a and b alike: nil and empty lists are the
// same, so are times within one second, and conditions in any order, since the API
// orders them as it likes.
func Equal(a, b *corev1.PodStatus) bool {
	if len(a.Conditions) != len(b.Conditions) {
		return false
	}
	first, others := conditionsIn(a.Conditions), conditionsIn(b.Conditions)
	for i := range a.Conditions {
		c := &a.Conditions[i]
		if first.index(string(c.Type)) < i {
			continue // of a type that is there twice the first one counts
		}
		if other := others.find(string(c.Type)); other == nil || !equalCondition(c, other) {
			return false
		}
	}
	x, y := *a, *b
	x.Conditions, y.Conditions = nil, nil
	return equalWire(&x, &y)
}

// wire is implemented by the generated API types. Their wire form is exact, ordered,
// knows every field of the API in use, and is many times faster to compare than
// the values are by reflection.
type wire interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

func equalWire(a, b wire) bool {
	n := a.Size()
	if n != b.Size() {
		return false
	}
	var stack [2048]byte
	buf := stack[:]
	if 2*n > len(buf) {
		buf = make([]byte, 2*n)
	}
	x, y := buf[:n:n], buf[n:2*n:2*n]
	if _, err := a.MarshalToSizedBuffer(x); err != nil {
		return false
	}
	if _, err := b.MarshalToSizedBuffer(y); err != nil {
		return false
	}
	return bytes.Equal(x, y)
}

func equalContainers(a, b []corev1.ContainerStatus) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if &a[i] != &b[i] && !equalWire(&a[i], &b[i]) {
			return false
		}
	}
	return true
}

func equalCondition(a, b *corev1.PodCondition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
		a.ObservedGeneration == b.ObservedGeneration &&
		a.LastProbeTime.Equal(&b.LastProbeTime) && a.LastTransitionTime.Equal(&b.LastTransitionTime)
}

func equalResources(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, q := range a {
		if other, ok := b[name]; !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

func equalRequirements(a, b *corev1.ResourceRequirements) bool {
	if a == nil || b == nil {
		return a == b
	}
	return equalResources(a.Limits, b.Limits) && equalResources(a.Requests, b.Requests)
}
