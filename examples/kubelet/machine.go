// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
)

// taintKey is the taint that keeps off pods that need isolation.
const taintKey = "kubewright.dev/host-processes"

// version is the version that kubectl get nodes shows.
const version = "v1.37.0-kubewright"

// setters fill in the Node.
func (o *options) setters(capacity corev1.ResourceList) []nodestatus.Setter {
	return []nodestatus.Setter{
		nodestatus.HostInfo(corev1.NodeSystemInfo{KubeletVersion: version, ContainerRuntimeVersion: "process://" + version}),
		nodestatus.StandardLabels(),
		nodestatus.KubeletPort(int32(o.port)),
		nodestatus.Capacity(capacity, nil),
		nodestatus.DeclaredFeatures("RestartAllContainersOnContainerExits", nodeapi.FeatureWebSockets), // podruntime and nodeapi have them
		nodestatus.Addresses(
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: o.nodeIP},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: o.nodeName},
		),
	}
}

// template returns the Node's labels and taints at its creation.
func template(o *options, s settings) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.nodeName, Labels: s.Labels}}
	if o.taint {
		node.Spec.Taints = []corev1.Taint{{Key: taintKey, Effect: corev1.TaintEffectNoSchedule}}
	}
	return node
}
