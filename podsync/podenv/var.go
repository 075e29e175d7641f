// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

// Var is an environment variable.
type Var struct {
	// Name is its name, Value its value with all references resolved.
	Name, Value string
}

// serviceLinks are the variables that name one Service.
type serviceLinks struct {
	Service string `json:"service"`
	Vars    []Var  `json:"vars"`
}
