// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package public explores public controllers as they are, which know nothing of this
// library: controllers of kube-controller-manager, the pod controller of virtual-kubelet, and
// the publisher of ResourceSlices for DRA drivers.
package public
