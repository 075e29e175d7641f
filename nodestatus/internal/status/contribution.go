// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// A contribution is the values of one setter: a Node that holds only them. It is laid
// over the values of the setters before it while the setter fails.

// contribution returns the values that after has and before has not.
func contribution(before, after *corev1.Node) *corev1.Node {
	c := &corev1.Node{}
	was, is, changed := settable(before), settable(after), settable(c)
	for i := range changed {
		change(was[i], is[i], changed[i])
	}
	return c
}

// overlay adds the contribution c to node.
func overlay(node, c *corev1.Node) {
	into, values := settable(node), settable(c)
	for i := range into {
		lay(into[i], values[i])
	}
}

// settable returns the parts of node that setters may set.
func settable(node *corev1.Node) [4]reflect.Value {
	v := reflect.ValueOf(node).Elem()
	return [...]reflect.Value{v.FieldByName("Labels"), v.FieldByName("Annotations"), v.FieldByName("Spec"), v.FieldByName("Status")}
}

// change sets in c what after has and before has not: fields of structs, entries of
// maps, elements of lists by their keys, because two setters may share one.
func change(before, after, c reflect.Value) {
	switch after.Kind() {
	case reflect.Struct:
		for i := range after.NumField() {
			change(before.Field(i), after.Field(i), c.Field(i))
		}
	case reflect.Map:
		for key, value := range after.Seq2() {
			if old := before.MapIndex(key); old.IsValid() && same(old, value) {
				continue
			}
			if c.IsNil() {
				c.Set(reflect.MakeMap(c.Type()))
			}
			c.SetMapIndex(key, value)
		}
	case reflect.Slice:
		changed := make(map[any]bool)
		for i := range after.Len() {
			key := keyOf(after.Index(i))
			if _, known := changed[key]; !known {
				of := func(k any) bool { return k == key }
				changed[key] = !same(elements(before, of), elements(after, of))
			}
		}
		if list := elements(after, func(key any) bool { return changed[key] }); list.Len() > 0 {
			c.Set(list)
		}
	default:
		if !same(before, after) {
			c.Set(after)
		}
	}
}

// lay sets in node what c has.
func lay(node, c reflect.Value) {
	switch {
	case c.IsZero():
	case c.Kind() == reflect.Struct:
		for i := range c.NumField() {
			lay(node.Field(i), c.Field(i))
		}
	case c.Kind() == reflect.Map && !node.IsNil():
		for key, value := range c.Seq2() {
			node.SetMapIndex(key, value)
		}
	case c.Kind() == reflect.Slice:
		keys := make(map[any]bool)
		for i := range c.Len() {
			keys[keyOf(c.Index(i))] = true
		}
		node.Set(reflect.AppendSlice(elements(node, func(key any) bool { return !keys[key] }), c))
	default:
		node.Set(c)
	}
}

// keyOf returns the key of an element of a list. Lists without keys have one for all
// elements, and are replaced as a whole.
func keyOf(element reflect.Value) any {
	switch e := element.Interface().(type) {
	case corev1.NodeCondition:
		return e.Type
	case corev1.NodeAddress:
		return e.Type
	case corev1.Taint:
		return e.Key + ":" + string(e.Effect)
	}
	return nil
}

// elements returns the elements of list with the keys that are wanted.
func elements(list reflect.Value, wanted func(key any) bool) reflect.Value {
	some := reflect.MakeSlice(list.Type(), 0, list.Len())
	for i := range list.Len() {
		if wanted(keyOf(list.Index(i))) {
			some = reflect.Append(some, list.Index(i))
		}
	}
	return some
}

// same reports whether two values are equal. Quantities are equal when they are the same
// amount.
func same(a, b reflect.Value) bool { return equality.Semantic.DeepEqual(a.Interface(), b.Interface()) }
