// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// InvalidConfig returns the error of package pkg's New: one error for all
// problems of the Config, or nil if there are none. A problem names its field
// as the Config spells it, for example
// field.Required(field.NewPath("NodeName"), "").
func InvalidConfig(pkg string, problems field.ErrorList) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s: invalid config: %w", pkg, problems.ToAggregate())
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

// CheckNodeName returns the problems of a Node name. It accepts an empty name,
// because only the caller knows whether the name is required.
func CheckNodeName(at, name string) (problems field.ErrorList) {
	if name == "" {
		return nil
	}
	for _, msg := range validation.IsDNS1123Subdomain(name) {
		problems = append(problems, field.Invalid(field.NewPath(at), name, msg))
	}
	return problems
}

// CheckFirstNode returns the problems of a Config that names the first node of a
// controller in the field at, and may leave it empty if fleet, the field named
// fleetAt, is set. fleetAt is empty if there is no such field.
func CheckFirstNode(at, name, fleetAt string, fleet bool) field.ErrorList {
	if name == "" && !fleet {
		hint := "the name of the Node"
		if fleetAt != "" {
			hint += ", unless " + fleetAt + " says that all nodes come with Add"
		}
		return field.ErrorList{field.Required(field.NewPath(at), hint)}
	}
	return CheckNodeName(at, name)
}

// Required returns the problem of a required field that is not set. The hint says
// what to set it to.
func Required(name string, set bool, hint string) (problems field.ErrorList) {
	if !set {
		problems = append(problems, field.Required(field.NewPath(name), hint))
	}
	return problems
}

// DefaultDuration sets *d to def if *d is zero. It returns a problem if *d is
// then below minimum.
func DefaultDuration(name string, d *time.Duration, def, minimum time.Duration) field.ErrorList {
	if *d == 0 {
		*d = def
	}
	if *d < minimum {
		return field.ErrorList{field.Invalid(field.NewPath(name), d.String(), fmt.Sprintf("must be at least %v, or 0 for the default of %v", minimum, def))}
	}
	return nil
}

// DefaultInt sets *n to def if *n is zero. It returns a problem if *n is then
// below minimum.
func DefaultInt(name string, n *int, def, minimum int) field.ErrorList {
	if *n == 0 {
		*n = def
	}
	if *n < minimum {
		return field.ErrorList{field.Invalid(field.NewPath(name), *n, fmt.Sprintf("must be at least %d, or 0 for the default of %d", minimum, def))}
	}
	return nil
}
