// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NoOwner is an [OwnerFunc] for leases without an owner. Nobody deletes such a
// lease but [ShutdownDelete] and an administrator: each node that is gone for
// good leaves one behind. A lease that has an owner keeps it.
func NoOwner(context.Context, string) (metav1.OwnerReference, error) {
	return metav1.OwnerReference{}, nil
}

// A NodeGetter finds a Node by name. The NodeLister of client-go is one.
type NodeGetter interface {
	// Get returns the Node, or an error for which
	// [k8s.io/apimachinery/pkg/api/errors.IsNotFound] is true.
	Get(name string) (*corev1.Node, error)
}

// NodeOwner returns an [OwnerFunc] that looks Nodes up, for example in the
// cache of an informer. Call [Controller.Trigger] from the informer's handlers,
// so that the controller notices a Node that comes, goes or is replaced at
// once and not at the next renewal. The cache must be synced before Run: a Node
// that is not there is taken for deleted.
func NodeOwner(nodes NodeGetter) OwnerFunc {
	return func(_ context.Context, nodeName string) (metav1.OwnerReference, error) {
		node, err := nodes.Get(nodeName)
		if err != nil {
			return metav1.OwnerReference{}, err
		}
		return metav1.OwnerReference{
			APIVersion: nodeAPIVersion,
			Kind:       nodeKind,
			Name:       node.Name,
			UID:        node.UID,
		}, nil
	}
}

// How an owner reference names the kind of a Node.
const (
	nodeAPIVersion = "v1"
	nodeKind       = "Node"
)
