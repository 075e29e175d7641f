// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// A CompactPod is one version of a pod in its encoded form, which takes about a
// quarter of the memory of a *corev1.Pod. [Compact] makes it. It is immutable.
type CompactPod struct{ core core.Compact }

// Compact encodes a pod of an informer, and drops its managedFields. Give it to
// SetTransform of [Config.Informer] if only the Controller reads the informer:
// the informer's objects are then of type *CompactPod. Objects that are not pods
// are returned as they are. The informer of a Controller without Config.Informer
// uses it.
func Compact(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	encoded, err := core.Encode(pod)
	if err != nil {
		return nil, err
	}
	return &CompactPod{core: encoded}, nil
}

// GetObjectMeta returns the namespace, name, UID and resourceVersion of the pod, by
// which an informer identifies its objects.
func (p *CompactPod) GetObjectMeta() metav1.Object {
	return p.core.Meta()
}

// Pod returns the pod, a new copy at each call.
func (p *CompactPod) Pod() *corev1.Pod { return p.core.Pod() }

// versionOf returns the version that is an object of an informer, or nil if the object
// is no pod.
func versionOf(obj any) *core.Version {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return core.Cached(obj)
	case *CompactPod:
		return core.CachedCompact(&obj.core)
	}
	return nil
}
