// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

// Var is an environment variable.
type Var struct {
	// Name is its name, Value its value with all references resolved.
	Name, Value string
}
