// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// A Compact is one version of a pod in its encoded form. It is immutable.
type Compact struct {
	// key has the namespace, name, UID and resourceVersion one after the other, and
	// ends their ends: four strings would take twice the memory.
	key    string
	ends   [3]int32
	data   []byte                // protobuf
	writer unique.Handle[string] // see lastWriter
}

// Encode encodes a pod without its managedFields.
func Encode(pod *corev1.Pod) (Compact, error) {
	slim := *pod // a clientset in memory may share pod with its store
	slim.ManagedFields = nil
	data, err := slim.Marshal()
	if err != nil {
		return Compact{}, fmt.Errorf("podsync: encode pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	p := Compact{key: pod.Namespace + pod.Name + string(pod.UID) + pod.ResourceVersion, data: data, writer: unique.Make(lastWriter(pod))}
	p.ends[0] = int32(len(pod.Namespace))
	p.ends[1] = p.ends[0] + int32(len(pod.Name))
	p.ends[2] = p.ends[1] + int32(len(pod.UID))
	return p, nil
}

func (p *Compact) uid() types.UID { return types.UID(p.key[p.ends[1]:p.ends[2]]) }

func (p *Compact) resourceVersion() string { return p.key[p.ends[2]:] }

// Meta returns the namespace, name, UID and resourceVersion of the pod.
func (p *Compact) Meta() *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: p.key[:p.ends[0]], Name: p.key[p.ends[0]:p.ends[1]], UID: p.uid(), ResourceVersion: p.resourceVersion()}
}

// Pod returns the pod, a new copy at each call.
func (p *Compact) Pod() *corev1.Pod {
	pod := &corev1.Pod{}
	_ = pod.Unmarshal(p.data) // can't fail: Marshal made the data
	return pod
}

// A Version is one version of a pod, as the informer keeps it or as a request has returned it.
//
// Invariant: pod or compact is set, except in the zero Version, which is no pod. If both are, they are equal.
type Version struct {
	pod     *corev1.Pod // never changed; nil while only compact is kept
	compact *Compact    // nil unless the informer keeps compact pods
	cached  bool        // it is from the informer
}

// Cached returns a version that the informer has.
func Cached(pod *corev1.Pod) *Version { return &Version{pod: pod, cached: true} }

// CachedCompact returns a version that the informer has in encoded form.
func CachedCompact(compact *Compact) *Version { return &Version{compact: compact, cached: true} }

// Known returns a version that is known from elsewhere.
func Known(pod *corev1.Pod) *Version { return &Version{pod: pod} }

// UID returns the UID of the pod without decoding it.
func (v *Version) UID() types.UID {
	if v.compact != nil {
		return v.compact.uid()
	}
	return v.pod.UID
}

// ResourceVersion returns the resourceVersion of the pod without decoding it.
func (v *Version) ResourceVersion() string {
	if v.compact != nil {
		return v.compact.resourceVersion()
	}
	return v.pod.ResourceVersion
}

// Writer returns the field manager of the client that wrote the status last, as far as it is known.
func (v *Version) Writer() string {
	if v.compact != nil {
		return v.compact.writer.Value()
	}
	return lastWriter(v.pod)
}

// FieldManager is the manager of the status fields that the driver writes.
const FieldManager = "kubewright-podsync"

// lastWriter returns the field manager of the last other client that wrote the status of a pod; ""
// if managedFields has none.
func lastWriter(pod *corev1.Pod) (manager string) {
	var last *metav1.Time
	for i := range pod.ManagedFields {
		e := &pod.ManagedFields[i]
		if e.Subresource == "status" && e.Manager != FieldManager && (last == nil || last.Before(e.Time)) {
			manager, last = e.Manager, e.Time
		}
	}
	return manager
}

// Open returns the pod, and keeps it until the version is closed.
func (v *Version) Open() *corev1.Pod {
	if v.pod == nil {
		v.pod = v.compact.Pod()
	}
	return v.pod
}

// close drops the decoded pod if it can be decoded again.
func (v *Version) close() {
	if v.compact != nil {
		v.pod = nil
	}
}

// Private returns a copy of the pod that the caller may change; nil if the version is no pod.
// The receiver is a copy of a version, so no lock is needed.
func (v Version) Private() *corev1.Pod {
	if v.compact != nil {
		return v.compact.Pod()
	}
	return v.pod.DeepCopy()
}

// Shares reports whether the version is the one of the informer, and keeps no second copy of it.
func (v Version) Shares(informer *Version) bool {
	return v.ResourceVersion() == informer.ResourceVersion() && (v.compact != nil || v.pod == informer.pod)
}

// Older reports whether the resourceVersion a is older than b.
func Older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// older reports whether a is an older version than b.
func older(a, b *corev1.Pod) bool { return Older(a.ResourceVersion, b.ResourceVersion) }
