// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package providers stands in for a package that virtual-kubelet no longer has and that its
// provider of nomad imports.
package providers

// OperatingSystemLinux is the operating system of the provider's nodes.
const OperatingSystemLinux = "Linux"
