// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A contribution is the values of one setter: a Node that holds only them. It is laid
// over the values of the setters before it while the setter fails.

// contribution returns the values that after has and before has not.
func contribution(before, after *corev1.Node) *corev1.Node {
	c := &corev1.Node{}
	c.Labels = changedEntries(before.Labels, after.Labels, func(a, b string) bool { return a == b })
	c.Annotations = changedEntries(before.Annotations, after.Annotations, func(a, b string) bool { return a == b })

	was, is := before.Status, after.Status
	c.Status.Capacity = changedEntries(was.Capacity, is.Capacity, sameQuantity)
	c.Status.Allocatable = changedEntries(was.Allocatable, is.Allocatable, sameQuantity)
	for _, condition := range is.Conditions {
		condition.LastHeartbeatTime, condition.LastTransitionTime = metav1.Time{}, metav1.Time{}
		old := FindCondition(was.Conditions, condition.Type)
		if old == nil || old.Status != condition.Status || old.Reason != condition.Reason || old.Message != condition.Message {
			c.Status.Conditions = append(c.Status.Conditions, condition)
		}
	}
	for _, address := range is.Addresses {
		if !slices.Equal(ofType(was.Addresses, address.Type), ofType(is.Addresses, address.Type)) {
			c.Status.Addresses = append(c.Status.Addresses, address)
		}
	}
	wasSpec, isSpec := before.Spec, after.Spec
	c.Spec.Taints = MissingTaints(isSpec.Taints, wasSpec.Taints)
	wasSpec.Taints, isSpec.Taints = nil, nil
	changedFields(reflect.ValueOf(wasSpec), reflect.ValueOf(isSpec), reflect.ValueOf(&c.Spec).Elem())
	for _, status := range []*corev1.NodeStatus{&was, &is} { // copies
		status.Capacity, status.Allocatable, status.Conditions, status.Addresses = nil, nil, nil, nil
	}
	changedFields(reflect.ValueOf(was), reflect.ValueOf(is), reflect.ValueOf(&c.Status).Elem())
	return c
}

// overlay adds the contribution c to node.
func overlay(node, c *corev1.Node) {
	node.Labels = withEntries(node.Labels, c.Labels)
	node.Annotations = withEntries(node.Annotations, c.Annotations)

	add := c.Status
	node.Status.Capacity = withEntries(node.Status.Capacity, add.Capacity)
	node.Status.Allocatable = withEntries(node.Status.Allocatable, add.Allocatable)
	for _, condition := range add.Conditions {
		SetCondition(node, condition)
	}
	node.Status.Addresses = slices.DeleteFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
		return len(ofType(add.Addresses, a.Type)) > 0
	})
	node.Status.Addresses = append(node.Status.Addresses, add.Addresses...)
	add.Capacity, add.Allocatable, add.Conditions, add.Addresses = nil, nil, nil, nil
	withFields(reflect.ValueOf(&node.Status).Elem(), reflect.ValueOf(add))
	spec := c.Spec
	node.Spec.Taints, spec.Taints = withTaints(node.Spec.Taints, spec.Taints), nil
	withFields(reflect.ValueOf(&node.Spec).Elem(), reflect.ValueOf(spec))
}

// changedEntries returns the entries of after that before has not.
func changedEntries[M ~map[K]V, K comparable, V any](before, after M, same func(a, b V) bool) M {
	var changed M
	for key, value := range after {
		if old, there := before[key]; there && same(old, value) {
			continue
		}
		if changed == nil {
			changed = make(M)
		}
		changed[key] = value
	}
	return changed
}

// withEntries returns entries with more, which has precedence.
func withEntries[M ~map[K]V, K comparable, V any](entries, more M) M {
	if len(more) == 0 {
		return entries
	}
	if entries == nil {
		entries = make(M, len(more))
	}
	maps.Copy(entries, more)
	return entries
}

// changedFields sets in changed the fields that after and before have differently.
// Structs are compared field by field, because two setters may share one.
func changedFields(before, after, changed reflect.Value) {
	for i := range after.NumField() {
		switch b, a := before.Field(i), after.Field(i); {
		case a.IsZero() || a.Comparable() && a.Equal(b): // most are, and this is cheap
		case a.Kind() == reflect.Struct:
			changedFields(b, a, changed.Field(i))
		case !reflect.DeepEqual(b.Interface(), a.Interface()):
			changed.Field(i).Set(a)
		}
	}
}

// withFields sets in fields those that more has.
func withFields(fields, more reflect.Value) {
	for i := range more.NumField() {
		switch m := more.Field(i); {
		case m.Kind() == reflect.Struct:
			withFields(fields.Field(i), m)
		case !m.IsZero():
			fields.Field(i).Set(m)
		}
	}
}

// ofType returns the addresses of a type.
func ofType(addresses []corev1.NodeAddress, kind corev1.NodeAddressType) []corev1.NodeAddress {
	var list []corev1.NodeAddress
	for _, a := range addresses {
		if a.Type == kind {
			list = append(list, a)
		}
	}
	return list
}

// sameQuantity reports whether a and b are the same amount.
func sameQuantity(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }
