// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package cri runs the containers of package podruntime with a container runtime
// that has the Container Runtime Interface, such as containerd or CRI-O.
//
// Everything that the package makes in the runtime has the label that [Config.Node]
// chooses, and the package lists and removes nothing else. So the runtime may serve
// another kubelet at the same time.
package cri
