// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package callbacktest tests that controllers contain the panics of callbacks.
package callbacktest

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/internal/callback"
)

// ThenPanic returns a hook that calls hook and panics.
func ThenPanic[T any](hook func(T)) func(T) {
	return func(v T) {
		hook(v)
		panic("boom")
	}
}

// A Recorder is an events.EventRecorder that panics.
type Recorder struct{}

// Eventf panics.
func (Recorder) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) { panic("boom") }

// WantPanic checks that errs, which were reported, have a panic with the value "boom" in the callback of that name, and
// that its stack shows the file panic_test.go or this one.
func WantPanic(t testing.TB, errs []error, name string) {
	t.Helper()
	for _, err := range errs {
		p, ok := errors.AsType[*callback.PanicError](err)
		if !ok || p.Error() != "panic in "+name+": boom" {
			continue
		}
		if stack := string(p.Stack()); !strings.Contains(stack, "panic_test.go") && !strings.Contains(stack, "callbacktest.go") {
			t.Errorf("the stack does not show the callback:\n%s", stack)
		}
		return
	}
	t.Errorf("no panic of %s was reported, only %v", name, errs)
}
