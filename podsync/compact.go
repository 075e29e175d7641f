// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// A CompactPod is one version of a pod in its encoded form, which takes about a
// quarter of the memory of a *corev1.Pod. [Compact] makes it. It is immutable.
type CompactPod struct {
	// key has the namespace, name, UID and resourceVersion one after the other, and
	// ends their ends: four strings would take twice the memory.
	key  string
	ends [3]int32
	data []byte // protobuf
}

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
	slim := *pod // a clientset in memory may share pod with its store
	slim.ManagedFields = nil
	data, err := slim.Marshal()
	if err != nil {
		return nil, fmt.Errorf("podsync: encode pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	p := &CompactPod{key: pod.Namespace + pod.Name + string(pod.UID) + pod.ResourceVersion, data: data}
	p.ends[0] = int32(len(pod.Namespace))
	p.ends[1] = p.ends[0] + int32(len(pod.Name))
	p.ends[2] = p.ends[1] + int32(len(pod.UID))
	return p, nil
}

func (p *CompactPod) uid() types.UID { return types.UID(p.key[p.ends[1]:p.ends[2]]) }

func (p *CompactPod) resourceVersion() string { return p.key[p.ends[2]:] }

var (
	_ cache.TransformFunc       = Compact
	_ metav1.ObjectMetaAccessor = (*CompactPod)(nil)
)

// GetObjectMeta returns the namespace, name, UID and resourceVersion of the pod, by
// which an informer identifies its objects.
func (p *CompactPod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.key[:p.ends[0]], Name: p.key[p.ends[0]:p.ends[1]], UID: p.uid(), ResourceVersion: p.resourceVersion()}
}

// Pod returns the pod, a new copy at each call.
func (p *CompactPod) Pod() *corev1.Pod {
	pod := &corev1.Pod{}
	_ = pod.Unmarshal(p.data) // can't fail: Marshal made the data
	return pod
}

// A version is one version of a pod, as the informer keeps it. Controller.mu guards
// it.
//
// Invariant: pod or compact is set, except in the zero version, which is no pod. If both are, they are equal.
type version struct {
	pod     *corev1.Pod // never changed; nil while only compact is kept
	compact *CompactPod // nil unless the informer keeps compact pods
	cached  bool        // it is from the informer
}

// versionOf returns the version that is an object of an informer, or nil if the object
// is no pod.
func versionOf(obj any) *version {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return &version{pod: obj, cached: true}
	case *CompactPod:
		return &version{compact: obj, cached: true}
	}
	return nil
}

// uid returns the UID of the pod without decoding it.
func (v *version) uid() types.UID {
	if v.compact != nil {
		return v.compact.uid()
	}
	return v.pod.UID
}

// resourceVersion returns the resourceVersion of the pod without decoding it.
func (v *version) resourceVersion() string {
	if v.compact != nil {
		return v.compact.resourceVersion()
	}
	return v.pod.ResourceVersion
}

// open returns the pod, and keeps it until close is called.
func (v *version) open() *corev1.Pod {
	if v.pod == nil {
		v.pod = v.compact.Pod()
	}
	return v.pod
}

// close drops the decoded pod if it can be decoded again.
func (v *version) close() {
	if v.compact != nil {
		v.pod = nil
	}
}

// private returns a copy of the pod that the caller may change. The receiver is a
// copy of a version, so the lock is not needed.
func (v version) private() *corev1.Pod {
	if v.compact != nil {
		return v.compact.Pod()
	}
	return v.pod.DeepCopy() // nil if the zero version has no pod
}
