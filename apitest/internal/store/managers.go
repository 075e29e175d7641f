// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Earlier is the state of an object after the last write of one of its managers.
type Earlier struct {
	By  *metav1.ManagedFieldsEntry // its fields do not count
	Obj runtime.Object
}

// Unmanaged is the manager of Put, Edit and the server's own changes.
var Unmanaged = &metav1.ManagedFieldsEntry{}

// maxEarlier bounds the states of an object that the server remembers. The
// changes of a state that it forgets count as those of the next manager.
const maxEarlier = 16

// SameManager reports whether two entries of managedFields are of one manager.
func SameManager(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource
}

// follows records the manager by of this version, and takes over from prev the
// versions of earlier managers.
func (it *Item) follows(prev *Item, by *metav1.ManagedFieldsEntry) {
	it.By = by
	if prev == nil {
		return
	}
	it.Tracked, it.Earlier = prev.Tracked, prev.Earlier
	if it.Tracked {
		it.Earlier = nil
		return
	}
	if !SameManager(prev.By, by) {
		past := prev.Earlier
		if len(past) == maxEarlier {
			past = past[1:]
		}
		it.Earlier = append(slices.Clip(past), Earlier{prev.By, prev.Obj})
	}
}
