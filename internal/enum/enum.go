// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package enum is what the enumerations of all packages do alike: phases, stages
// and policies are ints from 0, with a String method, and a policy in a Config
// must be one of its constants. What is a word wherever it goes, to the API, into
// a file or a label of a metric, such as a reason or the name of a request, is a
// string type and no concern of this package.
package enum

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Name returns the name of v, where names are those of 0, 1 and so on. It is for
// String methods.
func Name[E ~int](v E, names ...string) string {
	if v < 0 || int(v) >= len(names) {
		return fmt.Sprintf("Invalid(%d)", int(v))
	}
	return names[v]
}

// Check returns a problem where v, the value of a field of a Config, is not one
// of 0 to last.
func Check[E interface {
	~int
	fmt.Stringer
}](name string, v, last E) field.ErrorList {
	if v >= 0 && v <= last {
		return nil
	}
	var supported []string
	for known := E(0); known <= last; known++ {
		supported = append(supported, known.String())
	}
	return field.ErrorList{field.NotSupported(field.NewPath(name), v.String(), supported)}
}
