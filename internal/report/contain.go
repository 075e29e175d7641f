// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"reflect"

	"github.com/kubewright/kubewright/internal/callback"
)

// Call calls f, which calls the callback of that name, and reports a panic in it.
func Call(ctx context.Context, handler Handler, name string, f func(), keysAndValues ...any) {
	err := callback.Contain(name, func() error {
		f()
		return nil
	})
	if err != nil {
		Tell(ctx, handler, err, "A callback panicked", keysAndValues...)
	}
}

// ContainHooks replaces the functions of *hooks by functions that call them and
// report their panics. H is a struct of functions that take one argument and return
// nothing. Functions that are nil stay nil.
func ContainHooks[H any](ctx context.Context, handler Handler, hooks *H) {
	fields := reflect.ValueOf(hooks).Elem()
	for i := range fields.NumField() {
		if fields.Field(i).IsNil() {
			continue
		}
		name := "Hooks." + fields.Type().Field(i).Name
		hook := reflect.ValueOf(fields.Field(i).Interface())
		fields.Field(i).Set(reflect.MakeFunc(hook.Type(), func(args []reflect.Value) []reflect.Value {
			Call(ctx, handler, name, func() { hook.Call(args) }, "argument", args[0].Interface())
			return nil
		}))
	}
}
