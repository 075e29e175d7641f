// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package statsv1alpha1 stands in for a package that virtual-kubelet no longer has and that
// azure-aci imports: the types of k8s.io/kubelet, which virtual-kubelet uses now.
package statsv1alpha1

import "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

// The types of k8s.io/kubelet.
type (
	Summary        = v1alpha1.Summary
	NodeStats      = v1alpha1.NodeStats
	PodStats       = v1alpha1.PodStats
	PodReference   = v1alpha1.PodReference
	ContainerStats = v1alpha1.ContainerStats
	CPUStats       = v1alpha1.CPUStats
	MemoryStats    = v1alpha1.MemoryStats
	NetworkStats   = v1alpha1.NetworkStats
	InterfaceStats = v1alpha1.InterfaceStats
	FsStats        = v1alpha1.FsStats
	VolumeStats    = v1alpha1.VolumeStats
)
