// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelet compares examples/crikubelet with the kubelet of Kubernetes: each on
// a containerd and a control plane of its own, one after the other, with the same
// images and network.
package kubelet
