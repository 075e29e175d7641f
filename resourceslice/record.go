// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// record is what the controller keeps of a slice that is on the API server:
// enough to compare it with what is desired, and a small fraction of its size.
// Records are immutable. They stand in the informer's store in place of the
// objects.
type record struct {
	// The metadata, without managedFields: an update repeats what others have
	// put there.
	metav1.ObjectMeta

	id         PoolID
	generation int64
	count      int64
	nodeName   string
	head       hash
	devices    []liveItem  // in the order of the slice
	sets       []liveItem  // in the order of the slice
	taints     []taintTime // of all devices
	manager    string      // who wrote the spec last
}

// liveItem is a device or a counter set as it is on the API server.
type liveItem struct {
	name    string
	hash    hash
	*traits // nil for a device without any
}

// record makes the record of a slice. It keeps no part of the slice but
// strings and metadata.
func (e *encoder) record(s *resourcev1.ResourceSlice) *record {
	r := &record{
		ObjectMeta: s.ObjectMeta,
		id:         PoolID{s.Spec.Driver, s.Spec.Pool.Name},
		generation: s.Spec.Pool.Generation,
		count:      s.Spec.Pool.ResourceSliceCount,
		head:       e.head(&s.Spec),
		manager:    lastManager(s.ManagedFields),
		devices:    make([]liveItem, len(s.Spec.Devices)),
	}
	r.ManagedFields = nil
	if s.Spec.NodeName != nil {
		r.nodeName = *s.Spec.NodeName
	}
	for i := range s.Spec.Devices {
		it := e.liveDevice(&s.Spec.Devices[i])
		r.devices[i] = liveItem{name: it.name, hash: it.hash, traits: it.traits}
		r.taints = append(r.taints, it.timesOfTaints()...)
	}
	for i := range s.Spec.SharedCounters {
		set := &s.Spec.SharedCounters[i]
		r.sets = append(r.sets, liveItem{name: set.Name, hash: e.sum(e.encode(set))})
	}
	return r
}

// liveDevice is device without the encoding.
func (e *encoder) liveDevice(d *resourcev1.Device) item {
	t := traitsOf(d)
	bare := d
	if t != nil && len(t.taints) > 0 {
		bare = withoutTimes(d)
	}
	return item{name: d.Name, hash: e.sum(e.encode(bare)), traits: t}
}

func lastManager(entries []metav1.ManagedFieldsEntry) string {
	var last metav1.ManagedFieldsEntry
	for _, entry := range entries {
		if entry.Time != nil && (last.Time == nil || !entry.Time.Before(last.Time)) {
			last = entry
		}
	}
	return last.Manager
}

// deleting reports whether the object waits for finalizers only.
func (r *record) deleting() bool { return r.DeletionTimestamp != nil }

// timeOf returns the time that the API server has for a taint.
func (r *record) timeOf(t taintTime) (metav1.Time, bool) {
	for _, live := range r.taints {
		if live.same(t) {
			return live.added, true
		}
	}
	return metav1.Time{}, false
}

// ownedBy reports whether one of the owners is ref.
func (r *record) ownedBy(ref *metav1.OwnerReference) bool {
	return slices.ContainsFunc(r.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.UID == ref.UID && o.Kind == ref.Kind && o.Name == ref.Name
	})
}

// foreignOwner returns an owner that can't be ref in an earlier life.
func (r *record) foreignOwner(ref *metav1.OwnerReference) *metav1.OwnerReference {
	for i := range r.OwnerReferences {
		o := &r.OwnerReferences[i]
		if ref == nil || o.Kind != ref.Kind || o.Name != ref.Name {
			return o
		}
	}
	return nil
}

// hasUID reports whether the record is of that very object.
func (r *record) hasUID(uid types.UID) bool { return r.UID == uid }
