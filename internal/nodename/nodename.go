// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodename checks the names of Nodes in Configs.
package nodename

import (
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Check returns the problems of a Node name. It accepts an empty name,
// because only the caller knows whether the name is required.
func Check(at, name string) (problems []error) {
	if name == "" {
		return nil
	}
	for _, msg := range validation.IsDNS1123Subdomain(name) {
		problems = append(problems, field.Invalid(field.NewPath(at), name, msg))
	}
	return problems
}

// CheckFirst returns the problems of a Config that names the first node of a
// controller in the field at, and may leave it empty if fleet, the field named
// fleetAt, is set. fleetAt is empty if there is no such field.
func CheckFirst(at, name, fleetAt string, fleet bool) []error {
	if name == "" && !fleet {
		hint := "the name of the Node"
		if fleetAt != "" {
			hint += ", unless " + fleetAt + " says that all nodes come with Add"
		}
		return []error{field.Required(field.NewPath(at), hint)}
	}
	return Check(at, name)
}
