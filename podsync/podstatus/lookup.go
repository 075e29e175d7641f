// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	corev1 "k8s.io/api/core/v1"
)

// few is the length of a list up to which a scan is faster than a map. Most pods have fewer
// containers, but the API server only limits the size of the object.
const few = 16

// A lookup finds elements of a list by name. If two have the same name, it finds the first one.
type lookup[T any] struct {
	list []T
	name func(*T) string
	at   map[string]int // nil: the list is short
}

// lookupIn returns a lookup in list. The names in list must not change while it is used.
func lookupIn[T any](list []T, name func(*T) string) lookup[T] {
	l := lookup[T]{list: list, name: name}
	if len(list) > few {
		l.at = make(map[string]int, len(list))
		for i := len(list) - 1; i >= 0; i-- {
			l.at[name(&list[i])] = i
		}
	}
	return l
}

func statusesIn(list []corev1.ContainerStatus) lookup[corev1.ContainerStatus] {
	return lookupIn(list, func(cs *corev1.ContainerStatus) string { return cs.Name })
}

func containersIn(list []corev1.Container) lookup[corev1.Container] {
	return lookupIn(list, func(c *corev1.Container) string { return c.Name })
}

func conditionsIn(list []corev1.PodCondition) lookup[corev1.PodCondition] {
	return lookupIn(list, func(c *corev1.PodCondition) string { return string(c.Type) })
}

// index returns the index of the element of this name, or -1.
func (l lookup[T]) index(name string) int {
	if l.at != nil {
		if i, ok := l.at[name]; ok {
			return i
		}
		return -1
	}
	for i := range l.list {
		if l.name(&l.list[i]) == name {
			return i
		}
	}
	return -1
}

// find returns the element of this name, or nil.
func (l lookup[T]) find(name string) *T {
	if i := l.index(name); i >= 0 {
		return &l.list[i]
	}
	return nil
}
