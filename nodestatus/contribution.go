// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A contribution is the changes of one setter to a Node: a Node that holds only
// that. Of a setter that is on time only the keys are kept, which thousands of nodes
// share: the values are those that the server shows.

// setterKeys names the entries of a contribution: "l" and the key of a label, and so on
// by the letters below.
type setterKeys []string

const (
	keyLabel       = "l"
	keyAnnotation  = "a"
	keyCapacity    = "q"
	keyAllocatable = "r"
	keyCondition   = "c"
	keyAddress     = "h" // and the type
	keyField       = "f" // of the status, and the names from the outermost, with dots
)

// contributionKeys returns the keys of a contribution, sorted.
func contributionKeys(c *corev1.Node) setterKeys {
	var keys setterKeys
	for key := range c.Labels {
		keys = append(keys, keyLabel+key)
	}
	for key := range c.Annotations {
		keys = append(keys, keyAnnotation+key)
	}
	for name := range c.Status.Capacity {
		keys = append(keys, keyCapacity+string(name))
	}
	for name := range c.Status.Allocatable {
		keys = append(keys, keyAllocatable+string(name))
	}
	for _, condition := range c.Status.Conditions {
		keys = append(keys, keyCondition+string(condition.Type))
	}
	for _, address := range c.Status.Addresses {
		keys = append(keys, keyAddress+string(address.Type))
	}
	rest := c.Status
	rest.Capacity, rest.Allocatable, rest.Conditions, rest.Addresses = nil, nil, nil, nil
	keys = fieldKeys(keys, keyField, reflect.ValueOf(rest))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// fieldKeys appends the names of the fields of v that are set.
func fieldKeys(keys setterKeys, prefix string, v reflect.Value) setterKeys {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.IsZero():
		case f.Kind() == reflect.Struct:
			keys = fieldKeys(keys, prefix+v.Type().Field(i).Name+".", f)
		default:
			keys = append(keys, prefix+v.Type().Field(i).Name)
		}
	}
	return keys
}

// withKeys returns encoded with the keys of the contribution c of setter i: a line for
// each setter, with tabs between the keys.
func withKeys(encoded unique.Handle[string], i int, c *corev1.Node) unique.Handle[string] {
	text := ""
	if encoded != (unique.Handle[string]{}) {
		text = encoded.Value()
	}
	lines := strings.Split(text, "\n")
	for len(lines) <= i {
		lines = append(lines, "")
	}
	line := strings.Join(contributionKeys(c), "\t")
	if lines[i] == line && encoded != (unique.Handle[string]{}) {
		return encoded
	}
	lines[i] = line
	return unique.Make(strings.Join(lines, "\n"))
}

// keysOfSetter returns the keys of setter i.
func keysOfSetter(encoded unique.Handle[string], i int) setterKeys {
	if encoded == (unique.Handle[string]{}) {
		return nil
	}
	lines := strings.Split(encoded.Value(), "\n")
	if i >= len(lines) || lines[i] == "" {
		return nil
	}
	return strings.Split(lines[i], "\t")
}

// pick returns the contribution that holds what node has of the keys. What
// kube-controller-manager has written into a condition because it had not heard of
// the node is not the setter's value.
func (keys setterKeys) pick(node *corev1.Node) *corev1.Node {
	has := func(letter, key string) bool {
		_, found := slices.BinarySearch(keys, letter+key)
		return found
	}
	c := &corev1.Node{}
	c.Labels = pickEntries(node.Labels, keyLabel, has)
	c.Annotations = pickEntries(node.Annotations, keyAnnotation, has)
	c.Status.Capacity = pickEntries(node.Status.Capacity, keyCapacity, has)
	c.Status.Allocatable = pickEntries(node.Status.Allocatable, keyAllocatable, has)
	for _, condition := range node.Status.Conditions {
		if has(keyCondition, string(condition.Type)) && !byNodeLifecycle(condition) {
			c.Status.Conditions = append(c.Status.Conditions, condition)
		}
	}
	for _, address := range node.Status.Addresses {
		if has(keyAddress, string(address.Type)) {
			c.Status.Addresses = append(c.Status.Addresses, address)
		}
	}
	pickFields(reflect.ValueOf(node.Status), reflect.ValueOf(&c.Status).Elem(), keyField, keys)
	return c
}

func pickEntries[M ~map[K]V, K ~string, V any](entries M, letter string, has func(letter, key string) bool) M {
	var picked M
	for key, value := range entries {
		if has(letter, string(key)) {
			picked = withEntries(picked, M{key: value})
		}
	}
	return picked
}

func pickFields(from, to reflect.Value, prefix string, keys setterKeys) {
	for i := range from.NumField() {
		name := prefix + from.Type().Field(i).Name
		if from.Field(i).Kind() == reflect.Struct {
			pickFields(from.Field(i), to.Field(i), name+".", keys)
		} else if _, found := slices.BinarySearch(keys, name); found {
			to.Field(i).Set(from.Field(i))
		}
	}
}

// contribution returns the values that after has and before has not, except for the spec, which
// matters only when the Node is created.
func contribution(before, after *corev1.Node) *corev1.Node {
	c := &corev1.Node{}
	c.Labels = changedEntries(before.Labels, after.Labels, func(a, b string) bool { return a == b })
	c.Annotations = changedEntries(before.Annotations, after.Annotations, func(a, b string) bool { return a == b })

	was, is := before.Status, after.Status
	c.Status.Capacity = changedEntries(was.Capacity, is.Capacity, sameQuantity)
	c.Status.Allocatable = changedEntries(was.Allocatable, is.Allocatable, sameQuantity)
	for _, condition := range is.Conditions {
		condition.LastHeartbeatTime, condition.LastTransitionTime = metav1.Time{}, metav1.Time{}
		old := findCondition(was.Conditions, condition.Type)
		if old == nil || old.Status != condition.Status || old.Reason != condition.Reason || old.Message != condition.Message {
			c.Status.Conditions = append(c.Status.Conditions, condition)
		}
	}
	for _, address := range is.Addresses {
		if !slices.Equal(ofType(was.Addresses, address.Type), ofType(is.Addresses, address.Type)) {
			c.Status.Addresses = append(c.Status.Addresses, address)
		}
	}
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
