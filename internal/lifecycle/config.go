// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// InvalidConfig returns the error of package pkg's New: one error for all
// problems of the Config, or nil if there are none. A problem names its field
// as the Config spells it. Problems of another kind, such as a *field.Error of
// the API machinery, have the same form. The error wraps the problems, and what it wraps
// has the methods of the API machinery's Aggregate.
func InvalidConfig(pkg string, problems []error) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s: invalid config: %w", pkg, aggregate(problems))
}

// An aggregate is a list of errors.
type aggregate []error

// Error returns each text once.
func (a aggregate) Error() string {
	var texts []string
	for _, problem := range a {
		if text := problem.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// Errors returns the list.
func (a aggregate) Errors() []error { return a }

// Unwrap returns the list.
func (a aggregate) Unwrap() []error { return a }

// Is reports whether one of the errors is target.
func (a aggregate) Is(target error) bool {
	return slices.ContainsFunc(a, func(err error) bool { return errors.Is(err, target) })
}

// Problems returns a list of errors of another type, such as a field.ErrorList, as
// problems of a Config.
func Problems[E error](list []E) []error {
	problems := make([]error, len(list))
	for i, problem := range list {
		problems[i] = problem
	}
	return problems
}

// Missing returns the problem of a required field that is not set. The hint says
// what to set it to.
func Missing(name, hint string) error {
	return fmt.Errorf("%s: Required value: %s", name, hint)
}

// Invalid returns the problem of a field with a value that is not allowed. The text
// says what is.
func Invalid(name string, value any, text string) error {
	if s, ok := value.(string); ok {
		value = strconv.Quote(s)
	}
	return fmt.Errorf("%s: Invalid value: %v: %s", name, value, text)
}

// IsNil reports whether v is nil, or an interface that holds a nil pointer, map, slice or
// func. A required field of a Config is checked with it: a method of a typed nil would panic
// only when it is called.
func IsNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	}
	return false
}

// Required returns the problem of a required field if it is not set.
func Required(name string, set bool, hint string) []error {
	if set {
		return nil
	}
	return []error{Missing(name, hint)}
}

// DefaultDuration sets *d to def if *d is zero. It returns a problem if *d is
// then below minimum.
func DefaultDuration(name string, d *time.Duration, def, minimum time.Duration) []error {
	if *d == 0 {
		*d = def
	}
	if *d >= minimum {
		return nil
	}
	return []error{Invalid(name, d.String(), fmt.Sprintf("must be at least %v, or 0 for the default of %v", minimum, def))}
}

// DefaultInt sets *n to def if *n is zero. It returns a problem if *n is then
// below minimum.
func DefaultInt(name string, n *int, def, minimum int) []error {
	if *n == 0 {
		*n = def
	}
	if *n >= minimum {
		return nil
	}
	return []error{Invalid(name, *n, fmt.Sprintf("must be at least %d, or 0 for the default of %d", minimum, def))}
}
