// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// stub stands for the fields of a manager of an object that is not tracked.
var stub = &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{}},"f:spec":{}}`)}

// manage brings the managedFields of obj up to date: those of old unless the
// client sent its own, with the entry of this writer added or dated again. It
// reports whether they changed in more than their times.
func (w *write) manage(obj runtime.Object, old *item) (changed bool) {
	m := metaOf(obj)
	if w.applied {
		return old == nil || !sameManagers(m.GetManagedFields(), metaOf(old.obj).GetManagedFields())
	}
	if old != nil && old.tracked {
		return w.track(obj, old)
	}
	entries := m.GetManagedFields()
	if old != nil {
		was := metaOf(old.obj).GetManagedFields()
		switch {
		case len(entries) == 0:
			entries = was
		case len(entries) == 1 && entries[0].Manager == "" && entries[0].FieldsV1 == nil:
			entries, changed = nil, true // [{}] resets
		default:
			changed = len(entries) != len(was)
		}
	}
	e := metav1.ManagedFieldsEntry{
		Manager: w.manager(), Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: w.kind.views[w.view].gv.String(), Time: &w.now,
		FieldsType: "FieldsV1", FieldsV1: stub, Subresource: w.r.Subresource,
	}
	i := slices.IndexFunc(entries, func(x metav1.ManagedFieldsEntry) bool { return sameManager(&x, &e) })
	out := make([]metav1.ManagedFieldsEntry, len(entries), len(entries)+1)
	copy(out, entries)
	if i < 0 {
		out = append(out, e)
	} else {
		out[i] = e
	}
	w.by = &out[max(i, 0)]
	if i < 0 {
		w.by = &out[len(entries)]
	}
	m.SetManagedFields(out)
	return changed
}

// track lets apimachinery's field manager bring the managedFields up to date.
func (w *write) track(obj runtime.Object, old *item) (changed bool) {
	was := metaOf(old.obj).GetManagedFields()
	fm, err := w.kind.fieldManager(0, w.r.Subresource)
	if err != nil {
		metaOf(obj).SetManagedFields(was)
		return false
	}
	// It changes its arguments, and stored objects are immutable.
	fm.UpdateNoErrors(old.obj.DeepCopyObject(), obj, w.manager())
	return !sameManagers(metaOf(obj).GetManagedFields(), was)
}

// sameManagers reports whether managedFields differ in nothing but times.
func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return sameManager(&x, &y) && x.FieldsV1.String() == y.FieldsV1.String()
	})
}

// manager is the field manager of a request: what it says, else the first
// part of its user agent.
func (w *write) manager() string {
	if w.r.FieldManager != "" {
		return w.r.FieldManager
	}
	name, _, _ := strings.Cut(w.r.UserAgent, "/")
	if name == "" {
		name = "unknown"
	}
	return name
}
