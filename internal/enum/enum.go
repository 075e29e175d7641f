// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package enum implements the common behavior of enumerations. Phases, stages
// and policies are ints that start at 0 and have a String method, and a policy
// in a Config must be one of its constants. Values that are written as words to
// the API, to files or to metric labels, such as reasons, are string types and
// do not use this package.
package enum

import (
	"fmt"
	"strconv"
	"strings"
)

// Name returns the name of v; names lists the names of 0, 1 and so on. String
// methods call it.
func Name[E ~int](v E, names ...string) string {
	if v < 0 || int(v) >= len(names) {
		return fmt.Sprintf("Invalid(%d)", int(v))
	}
	return names[v]
}

// Check returns a problem if v, the value of a Config field, is not between 0
// and last.
func Check[E interface {
	~int
	fmt.Stringer
}](name string, v, last E) []error {
	if v >= 0 && v <= last {
		return nil
	}
	var supported []string
	for known := E(0); known <= last; known++ {
		supported = append(supported, strconv.Quote(known.String()))
	}
	return []error{fmt.Errorf("%s: Unsupported value: %q: supported values: %s", name, v.String(), strings.Join(supported, ", "))}
}
