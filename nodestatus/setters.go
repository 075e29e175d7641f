// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// SetCondition sets a condition of a scratch Node, in the place of the one of
// the same type if there is one. It is for use in a Setter. The times of the
// condition do not matter: the controller fills them in.
func SetCondition(node *corev1.Node, condition corev1.NodeCondition) {
	status.SetCondition(node, condition)
}

// Capacity returns a Setter for the capacity, and for what of it pods can have:
// capacity less reserved, and never less than nothing. Resources that are in
// reserved only are ignored. reserved may be nil.
func Capacity(capacity, reserved corev1.ResourceList) Setter {
	capacity = capacity.DeepCopy()
	allocatable := make(corev1.ResourceList, len(capacity))
	for name, quantity := range capacity {
		left := quantity.DeepCopy()
		left.Sub(reserved[name])
		if left.Sign() < 0 {
			left.Set(0)
		}
		// A quantity remembers its text: each round encodes it several times.
		_, _ = quantity.String(), left.String()
		capacity[name], allocatable[name] = quantity, left
	}
	return func(_ context.Context, node *corev1.Node) error {
		if node.Status.Capacity == nil {
			node.Status.Capacity = make(corev1.ResourceList)
		}
		if node.Status.Allocatable == nil {
			node.Status.Allocatable = make(corev1.ResourceList)
		}
		for name, quantity := range capacity {
			node.Status.Capacity[name] = quantity.DeepCopy()
			node.Status.Allocatable[name] = allocatable[name].DeepCopy()
		}
		return nil
	}
}

// Addresses returns a Setter for the addresses. Those of another type that a
// setter before it has set are kept.
func Addresses(addresses ...corev1.NodeAddress) Setter {
	addresses = slices.Clone(addresses)
	return func(_ context.Context, node *corev1.Node) error {
		set := slices.DeleteFunc(node.Status.Addresses, func(old corev1.NodeAddress) bool {
			return slices.ContainsFunc(addresses, func(a corev1.NodeAddress) bool { return a.Type == old.Type })
		})
		node.Status.Addresses = append(set, addresses...)
		return nil
	}
}

// The kubelet's limits for the images in a Node's status: how many it lists, and
// how many names of each.
const (
	maxImages     = 50
	maxImageNames = 5
)

// Images returns a Setter for the images that are on the node. Of more than 50
// those listed are the largest, as the scheduler prefers nodes by the bytes they
// need not pull; of the names of an image the first five are listed. Both are
// the kubelet's limits. What list returns is not changed.
func Images(list func(ctx context.Context, nodeName string) ([]corev1.ContainerImage, error)) Setter {
	return func(ctx context.Context, node *corev1.Node) error {
		images, err := list(ctx, node.Name)
		if err != nil {
			return err
		}
		node.Status.Images = capImages(images)
		return nil
	}
}

// capImages returns the images to be listed, in an order that depends on
// nothing but the images: another order would be another status.
func capImages(images []corev1.ContainerImage) []corev1.ContainerImage {
	images = slices.Clone(images)
	for i, image := range images {
		images[i].Names = slices.Clone(image.Names[:min(len(image.Names), maxImageNames)])
	}
	slices.SortStableFunc(images, func(a, b corev1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), slices.Compare(a.Names, b.Names))
	})
	return images[:min(len(images), maxImages)]
}

// KubeletPort returns a Setter for the port on which the node serves the API of a
// kubelet. A node that has none should leave out the addresses too: to a node that
// has an address and no port the API server connects on 10250, and of one without an
// address kubectl logs says "no preferred addresses found".
func KubeletPort(port int32) Setter {
	return func(_ context.Context, node *corev1.Node) error {
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		return nil
	}
}

// StandardLabels returns a Setter for the labels that workloads expect of every
// node, and that a node's credentials may set: kubernetes.io/hostname is the
// name of the node (left out if that is no valid label: names may be longer
// than 63 characters), kubernetes.io/os and kubernetes.io/arch are those of
// NodeInfo if a setter before it has set them, and else of this process.
func StandardLabels() Setter {
	return func(_ context.Context, node *corev1.Node) error {
		labels := map[string]string{
			corev1.LabelOSStable:   cmp.Or(node.Status.NodeInfo.OperatingSystem, runtime.GOOS),
			corev1.LabelArchStable: cmp.Or(node.Status.NodeInfo.Architecture, runtime.GOARCH),
		}
		if len(validation.IsValidLabelValue(node.Name)) == 0 {
			labels[corev1.LabelHostname] = node.Name
		}
		if node.Labels == nil {
			node.Labels = make(map[string]string)
		}
		maps.Copy(node.Labels, labels)
		return nil
	}
}

// DeclaredFeatures returns a Setter for the features that the node declares
// (KEP-5328, since Kubernetes 1.37 for all clusters). The scheduler places a pod that
// needs a declared feature only on nodes that declare it, and the API server refuses
// an update of a pod that needs one on another node. The names are those of package
// k8s.io/component-helpers/nodedeclaredfeatures; the API server refuses a list that is
// not sorted or has duplicates, so the Setter sorts it and drops them. Names that
// a setter before it has declared are kept.
//
// Declare only features that the program has. Of the features of Kubernetes 1.37, package
// podruntime of this module implements RestartAllContainersOnContainerExits; package
// podsync needs none, and leaves all to its Provider.
func DeclaredFeatures(names ...string) Setter {
	names = slices.Clone(names)
	return func(_ context.Context, node *corev1.Node) error {
		all := slices.Concat(node.Status.DeclaredFeatures, names)
		slices.Sort(all)
		node.Status.DeclaredFeatures = slices.Compact(all)
		return nil
	}
}

// Runtime returns a Setter for the abilities of the container runtime: its handlers, in
// the order of their names, and features that do not depend on the handler. The
// scheduler uses the features of the default handler, whose name is empty, for pods
// with user namespaces. features may be nil.
func Runtime(handlers []corev1.NodeRuntimeHandler, features *corev1.NodeFeatures) Setter {
	said := (&corev1.NodeStatus{RuntimeHandlers: handlers, Features: features}).DeepCopy()
	slices.SortStableFunc(said.RuntimeHandlers, func(a, b corev1.NodeRuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	return func(_ context.Context, node *corev1.Node) error {
		copied := said.DeepCopy()
		node.Status.RuntimeHandlers, node.Status.Features = copied.RuntimeHandlers, copied.Features
		return nil
	}
}

// VolumesInUse returns a Setter for the attachable volumes that are mounted on the
// node, or about to be. kube-controller-manager detaches a volume only after it has
// left this list, so a volume must be in it before it is mounted, and until it is
// unmounted: before a mount add it to what list returns, and wait for
// [Controller.Flush]. An error of list keeps the list as it was last. What list returns
// is not changed.
func VolumesInUse(list func(ctx context.Context, nodeName string) ([]corev1.UniqueVolumeName, error)) Setter {
	return func(ctx context.Context, node *corev1.Node) error {
		volumes, err := list(ctx, node.Name)
		if err != nil {
			return err
		}
		volumes = slices.Sorted(slices.Values(volumes)) // another order would be another status
		node.Status.VolumesInUse = slices.Compact(volumes)
		return nil
	}
}
