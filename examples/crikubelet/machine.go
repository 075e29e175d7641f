// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
)

// version is what kubectl get nodes shows.
const version = "v1.37.0-kubewright"

// setters fill in the Node.
func (k *kubelet) setters(ctx context.Context) []nodestatus.Setter {
	// A runtime that does not answer yet is asked again with each status.
	runtimeVersion := func(ctx context.Context, node *corev1.Node) error {
		v, err := k.runtime.Version(ctx)
		if err == nil {
			node.Status.NodeInfo.ContainerRuntimeVersion = v
		}
		return nil // the health check reports it
	}
	return []nodestatus.Setter{
		nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: version}),
		runtimeVersion,
		nodestatus.StandardLabels(),
		nodestatus.KubeletPort(int32(k.port)),
		nodestatus.Capacity(k.capacity, nil),
		nodestatus.DiskPressure(k.root, k.minFreeDisk),
		nodestatus.DeclaredFeatures( // of podruntime and nodeapi
			"RestartAllContainersOnContainerExits", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
			nodeapi.FeatureWebSockets,
		),
		nodestatus.Addresses(
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: k.nodeIP},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.nodeName},
		),
	}
}
