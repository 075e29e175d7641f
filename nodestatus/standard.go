// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"runtime/debug"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// DefaultPods is the number of pods for which a node with the setters of [Standard] has
// room. It is the kubelet's maxPods.
const DefaultPods = 110

// Standard returns the setters that every node needs, and then those that are given, which
// can replace what they set:
//
//   - [Capacity] for DefaultPods pods. Without it the scheduler places no pods on the node.
//   - [HostInfo] with the version of the program's client-go as KubeletVersion.
//   - The name of the node as its address of type Hostname, without which kubectl logs
//     fails.
//   - [StandardLabels].
//
// A later [HostInfo] replaces NodeInfo as a whole; [ContainerRuntime] changes one field.
func Standard(more ...Setter) []Setter {
	return slices.Concat([]Setter{
		Capacity(corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(DefaultPods, resource.DecimalSI)}, nil),
		HostInfo(corev1.NodeSystemInfo{KubeletVersion: kubernetesVersion(debug.ReadBuildInfo())}),
		func(ctx context.Context, node *corev1.Node) error {
			return Addresses(corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name})(ctx, node)
		},
		StandardLabels(),
	}, more)
}

// ContainerRuntime returns a Setter for the name and version of the container runtime, such
// as "containerd://2.1.4". kubectl get nodes -o wide shows it. Other fields of NodeInfo stay.
func ContainerRuntime(version string) Setter {
	return func(_ context.Context, node *corev1.Node) error {
		node.Status.NodeInfo.ContainerRuntimeVersion = version
		return nil
	}
}

// builtWith is the version of Kubernetes of this module, for programs without build
// information. A test compares it with go.mod.
const builtWith = "v1.37.2"

// kubernetesVersion returns the version of Kubernetes of the program's client-go, v0.x.y of
// which is of Kubernetes v1.x.y.
func kubernetesVersion(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return builtWith
	}
	for _, dep := range info.Deps {
		if dep.Path != "k8s.io/client-go" {
			continue
		}
		if dep.Replace != nil {
			dep = dep.Replace
		}
		if minor, ok := strings.CutPrefix(dep.Version, "v0."); ok && !strings.HasPrefix(minor, "0.") {
			return "v1." + minor
		}
	}
	return builtWith
}
