// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package rig runs nodes with a container runtime for tests: a containerd of its own,
// images that are made here, and a kubelet on it, examples/crikubelet or that of
// Kubernetes.
//
// Nothing of the machine's own containerd is used. When a test ends, its containers with
// their processes, mounts, network namespaces, bridge and cgroups are gone.
package rig
