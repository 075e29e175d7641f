// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// CollectGarbage runs the garbage collector once. It deletes every object whose
// owners are all gone, by kind, name and UID, removes references to owners that are
// gone if another one is left, and completes deletions with the Foreground and Orphan
// policies. It returns the deleted objects as "resource/namespace/name". Owners of
// unknown kinds count as existing.
func (s *Server) CollectGarbage() (deleted []string) {
	s.Store.Begin()
	defer s.Store.Commit()
	all := s.kinds()
	for changed := true; changed; {
		changed = false
		for _, k := range all {
			t := s.Store.Tables[k.Table()]
			if t == nil {
				continue
			}
			for _, it := range t.Sorted("") {
				m := codec.MetaOf(it.Obj)
				refs := m.GetOwnerReferences()
				solid := slices.DeleteFunc(slices.Clone(refs), func(ref metav1.OwnerReference) bool { return !s.solid(ref, it.Key.Namespace) })
				switch {
				case len(solid) == len(refs) || m.GetDeletionTimestamp() != nil:
				case len(solid) > 0:
					s.setOwners(t, it, solid)
					changed = true
				case s.collect(k, it):
					deleted = append(deleted, k.Resource+"/"+it.Key.Namespace+"/"+it.Key.Name)
					changed = true
				}
			}
		}
		for _, k := range all {
			if t := s.Store.Tables[k.Table()]; t != nil {
				for _, it := range t.Sorted("") {
					s.propagate(t, it)
				}
			}
		}
	}
	return deleted
}

// solid reports whether an owner exists and does not wait for the deletion of its
// dependents.
func (s *Server) solid(ref metav1.OwnerReference, namespace string) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return true
	}
	k := s.kindNamed(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if k == nil {
		return true
	}
	at := store.Key{Name: ref.Name}
	if k.Namespaced {
		at.Namespace = namespace
	}
	owner := s.Store.Table(k).Items[at]
	if owner == nil {
		return false
	}
	m := codec.MetaOf(owner.Obj)
	waits := m.GetDeletionTimestamp() != nil && slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents)
	return m.GetUID() == ref.UID && !waits
}

// setOwners replaces the owners of an object.
func (s *Server) setOwners(t *store.Table, it *store.Item, refs []metav1.OwnerReference) {
	obj := codec.Shallow(it.Obj)
	codec.MetaOf(obj).SetOwnerReferences(refs)
	s.Store.Put(t, obj, it)
}

// asServer returns a call for a change that the server makes itself.
func (s *Server) asServer(k *rules.Kind) *Call {
	return &Call{s: s, r: &request.Request{User: request.Admin, Group: k.Stored().Group, Resource: k.Resource}, ctx: context.Background(), kind: k}
}

// collect deletes an object as a client would, with grace period and finalizers.
// It reports whether the object changed.
func (s *Server) collect(k *rules.Kind, it *store.Item) bool {
	if codec.MetaOf(it.Obj).GetDeletionTimestamp() != nil {
		return false
	}
	uid := codec.MetaOf(it.Obj).GetUID()
	_, _, err := s.asServer(k).removeOne(it, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	return err == nil
}

// propagate removes the finalizer of the deletion policy of an object: with Orphan, after
// the references of its dependents, with Foreground, if no dependent blocks the deletion.
func (s *Server) propagate(t *store.Table, it *store.Item) {
	m := codec.MetaOf(it.Obj)
	if m.GetDeletionTimestamp() == nil {
		return
	}
	foreground := slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents)
	orphan := slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents)
	if !foreground && !orphan {
		return
	}
	left := 0
	for _, k := range s.kinds() {
		dt := s.Store.Tables[k.Table()]
		if dt == nil {
			continue
		}
		for _, dep := range dt.Sorted("") {
			refs := codec.MetaOf(dep.Obj).GetOwnerReferences()
			others := slices.DeleteFunc(slices.Clone(refs), func(ref metav1.OwnerReference) bool { return ref.UID == m.GetUID() })
			switch {
			case len(others) == len(refs):
			case foreground:
				if slices.ContainsFunc(refs, func(ref metav1.OwnerReference) bool {
					return ref.UID == m.GetUID() && ptr.Deref(ref.BlockOwnerDeletion, false)
				}) {
					left++
				}
			default:
				s.setOwners(dt, dep, others)
			}
		}
	}
	if left > 0 {
		return
	}
	finalizers := slices.DeleteFunc(slices.Clone(m.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	if len(finalizers) == 0 && (m.GetDeletionGracePeriodSeconds() == nil || *m.GetDeletionGracePeriodSeconds() == 0) {
		s.Store.Remove(t, it)
		return
	}
	obj := codec.Shallow(it.Obj)
	codec.MetaOf(obj).SetFinalizers(finalizers)
	s.Store.Put(t, obj, it)
}
