// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package optional finds methods that were meant for an optional interface, and have
// another signature. Without it their feature would be missing without a word.
package optional

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A Method is a method of an optional interface.
type Method struct {
	want reflect.Type // the interface is its first parameter
	name string
	find func(reflect.Type) (reflect.Method, bool)
}

// Of returns the Method of a method expression, such as Watcher.Watch. The function finds
// the name of the method in a type. It must have the name as a constant:
//
//	func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Watch") }
//
// Otherwise the linker keeps all exported methods of all types in every program that
// imports the package, which with client-go are 27 MB.
func Of(expression any, find func(reflect.Type) (reflect.Method, bool)) Method {
	name := runtime.FuncForPC(reflect.ValueOf(expression).Pointer()).Name()
	return Method{reflect.TypeOf(expression), name[strings.LastIndex(name, ".")+1:], find}
}

// Interface returns the optional interface.
func (m Method) Interface() reflect.Type { return m.want.In(0) }

// Name returns the name of the method.
func (m Method) Name() string { return m.name }

// is reports whether a method of a type has the signature of m.
func (m Method) is(got reflect.Method) bool {
	return signature(got.Type) == signature(m.want)
}

// Check returns the problems of a value in a field of a Config, which may have the
// methods:
//
//   - A method has the name of one of them, but another signature.
//   - An interface has several methods, and the value has only some of them.
func Check(at string, value any, methods []Method) (problems []error) {
	if value == nil {
		return nil
	}
	has := reflect.TypeOf(value)
	for _, m := range methods {
		got, ok := m.find(has)
		switch {
		case ok && !m.is(got):
			problems = append(problems, field.Invalid(field.NewPath(at).Child(got.Name), signature(got.Type).String(), fmt.Sprintf(
				"%v needs %v: correct the method of %v, or, if it has another purpose, wrap the value in a type that has no method %s",
				m.Interface(), signature(m.want), has, got.Name)))
		case !ok:
			if others := companions(has, m, methods); len(others) > 0 {
				problems = append(problems, field.Required(field.NewPath(at).Child(m.name), fmt.Sprintf(
					"%v has %s, and %v needs this one too, %v: add it, or wrap the value in a type that has no method %[2]s",
					has, strings.Join(others, ", "), m.Interface(), signature(m.want))))
			}
		}
	}
	return problems
}

// companions returns the methods of a type that it has for the interface of m, and for
// none that is a part of it.
func companions(has reflect.Type, m Method, methods []Method) (names []string) {
	for _, other := range methods {
		got, ok := other.find(has)
		if !ok || other.Interface() != m.Interface() || !other.is(got) {
			continue
		}
		shared := slices.ContainsFunc(methods, func(third Method) bool {
			return third.name == got.Name && !third.Interface().Implements(m.Interface())
		})
		if !shared {
			names = append(names, got.Name)
		}
	}
	return names
}

// signature returns the type of a method without its receiver.
func signature(method reflect.Type) reflect.Type {
	in, out := make([]reflect.Type, 0, method.NumIn()), make([]reflect.Type, 0, method.NumOut())
	for i := 1; i < method.NumIn(); i++ {
		in = append(in, method.In(i))
	}
	for i := range method.NumOut() {
		out = append(out, method.Out(i))
	}
	return reflect.FuncOf(in, out, method.IsVariadic())
}
