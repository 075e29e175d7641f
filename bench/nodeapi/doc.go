// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeapi measures package nodeapi beside node/api of virtual-kubelet: the
// same backend, the same clients, TLS on loopback, no authentication on either
// side.
package nodeapi
