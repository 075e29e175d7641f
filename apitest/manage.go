// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stub stands for the field sets that the real server tracks.
var stub = &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{}},"f:spec":{}}`)}

// manage brings managedFields up to date: those of old unless the client sent
// its own, with the entry of this writer added or dated anew. The contents of
// the field sets are a stub. It reports whether the client changed them.
func (w *write) manage(m metav1.Object, old *item) (changed bool) {
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
	i := slices.IndexFunc(entries, func(x metav1.ManagedFieldsEntry) bool {
		return x.Manager == e.Manager && x.Operation == e.Operation && x.APIVersion == e.APIVersion && x.Subresource == e.Subresource
	})
	out := make([]metav1.ManagedFieldsEntry, len(entries), len(entries)+1)
	copy(out, entries)
	if i < 0 {
		out = append(out, e)
	} else {
		out[i] = e
	}
	m.SetManagedFields(out)
	return changed
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
