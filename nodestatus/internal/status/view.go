// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"hash/maphash"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// newer reports whether resourceVersion a is later than b. Since Kubernetes
// 1.35 they are defined to be comparable (KEP-5504), and they always were for
// objects kept in etcd. One that is not a number is taken for newer.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// view is a Node as the server showed it: in protobuf a fifth of its size as an
// object. It is never changed.
type view struct {
	resourceVersion string
	uid             types.UID
	encoded         []byte // without the fields above
	spec            uint64 // hash of the spec
	lacks           bool   // it lacks a taint that the Node must have
}

// newView encodes node without its managedFields, which no reader of a view needs and
// which would double its size.
func newView(node *corev1.Node, seed maphash.Seed, keep []corev1.Taint) *view {
	lean := *node
	lean.ManagedFields, lean.ResourceVersion, lean.UID = nil, "", ""
	// Marshal fails only if Size is wrong. A view without content would be
	// taken for a Node that lacks everything, and all of it written.
	encoded, _ := lean.Marshal()
	spec, _ := node.Spec.Marshal()
	return &view{
		resourceVersion: node.ResourceVersion, uid: node.UID, encoded: encoded,
		spec:  maphash.Bytes(seed, spec),
		lacks: len(MissingTaints(keep, node.Spec.Taints)) > 0,
	}
}

// node decodes the view. It returns nil for a nil view.
func (v *view) node() *corev1.Node {
	if v == nil {
		return nil
	}
	node := &corev1.Node{}
	_ = node.Unmarshal(v.encoded) // newView has encoded it
	node.ResourceVersion, node.UID = v.resourceVersion, v.uid
	return node
}

// fingerprint returns the hash of what node says without the times of its
// conditions, which must be zero: labels, annotations, status, and the spec, which
// counts only for a creation. The encoding is deterministic (maps are written in the
// order of their keys). A collision, one in 2^64, would delay a change until the next
// report.
func fingerprint(seed maphash.Seed, node *corev1.Node, spec corev1.NodeSpec) uint64 {
	lean := corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations}, Spec: spec, Status: node.Status}
	encoded, _ := lean.Marshal() // fails only if Size is wrong
	return maphash.Bytes(seed, encoded)
}
