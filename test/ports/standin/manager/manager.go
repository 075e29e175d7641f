// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package manager stands in for a package that virtual-kubelet no longer exports and that
// its provider of nomad imports.
package manager

// ResourceManager is a parameter that the provider stores and never uses.
type ResourceManager struct{}
