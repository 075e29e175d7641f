// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeapi compares package nodeapi with node/api of virtual-kubelet,
// with the same backend, the same clients, TLS on loopback, and no
// authentication on either side.
package nodeapi
