// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package callback contains the panics of functions of a Config, so that a panic
// concerns one call and the object that the call was about.
package callback

import (
	"fmt"
	"runtime/debug"
)

// A PanicError is a panic in a callback. It does not wrap the argument of panic: an
// error there is no answer of the callback, such as "the Node does not exist".
type PanicError struct {
	callback string
	value    any
	stack    []byte
}

// Error implements error, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.callback, e.value) }

// Stack returns the stack of the goroutine that panicked.
func (e *PanicError) Stack() []byte { return e.stack }

// Contain calls f, which calls the callback of that name, and returns a panic in it
// as a *PanicError.
func Contain(callback string, f func() error) error {
	_, err := Get(callback, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// Get is Contain for a callback that returns a value.
func Get[T any](callback string, f func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{callback: callback, value: p, stack: debug.Stack()}
		}
	}()
	return f()
}
