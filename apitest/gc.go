// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// CollectGarbage does once what the garbage collector does: it deletes every
// object whose owners are all gone, by kind, name and UID, and carries out
// deletions with the Foreground and Orphan policies. It returns the deleted
// objects as "resource/namespace/name". Owners of kinds that the server does
// not know count as existing.
func (s *Server) CollectGarbage() (deleted []string) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	all := s.kinds()
	for {
		n := 0
		for _, k := range all {
			t := s.store.tables[k.table()]
			if t == nil {
				continue
			}
			for _, it := range t.sorted("") {
				if s.orphaned(it) && s.collect(k, it) {
					deleted = append(deleted, k.resource+"/"+it.key.namespace+"/"+it.key.name)
					n++
				}
			}
			for _, it := range t.sorted("") {
				s.propagate(t, it)
			}
		}
		if n == 0 {
			return deleted
		}
	}
}

// orphaned reports whether an object has owners and none of them exists.
func (s *Server) orphaned(it *item) bool {
	refs := metaOf(it.obj).GetOwnerReferences()
	return len(refs) > 0 && !slices.ContainsFunc(refs, func(ref metav1.OwnerReference) bool { return s.exists(ref, it.key.namespace) })
}

func (s *Server) exists(ref metav1.OwnerReference, namespace string) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return true
	}
	k := s.kindNamed(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if k == nil {
		return true
	}
	at := key{name: ref.Name}
	if k.namespaced {
		at.namespace = namespace
	}
	owner := s.store.table(k).items[at]
	return owner != nil && metaOf(owner.obj).GetUID() == ref.UID
}

// asServer is a call by which the server itself changes something.
func (s *Server) asServer(k *kind) *call {
	return &call{s: s, r: &Request{User: admin, Group: k.stored().Group, Resource: k.resource}, ctx: context.Background(), kind: k}
}

// collect deletes an object like any client, so that grace and finalizers
// count. It reports whether that changed anything.
func (s *Server) collect(k *kind, it *item) bool {
	if metaOf(it.obj).GetDeletionTimestamp() != nil {
		return false
	}
	uid := metaOf(it.obj).GetUID()
	_, _, err := s.asServer(k).removeOne(it, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	return err == nil
}

// propagate carries out what a finalizer of a deletion policy waits for.
func (s *Server) propagate(t *table, it *item) {
	m := metaOf(it.obj)
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
		dt := s.store.tables[k.table()]
		if dt == nil {
			continue
		}
		for _, dep := range dt.sorted("") {
			if !ownedBy(dep, m.GetUID()) {
				continue
			}
			if foreground {
				s.collect(k, dep)
				if dt.items[dep.key] != nil {
					left++
				}
				continue
			}
			obj := shallow(dep.obj)
			metaOf(obj).SetOwnerReferences(slices.DeleteFunc(slices.Clone(metaOf(obj).GetOwnerReferences()),
				func(ref metav1.OwnerReference) bool { return ref.UID == m.GetUID() }))
			s.store.put(dt, obj, dep)
		}
	}
	if left > 0 {
		return
	}
	finalizers := slices.DeleteFunc(slices.Clone(m.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	if len(finalizers) == 0 && (m.GetDeletionGracePeriodSeconds() == nil || *m.GetDeletionGracePeriodSeconds() == 0) {
		s.store.remove(t, it)
		return
	}
	obj := shallow(it.obj)
	metaOf(obj).SetFinalizers(finalizers)
	s.store.put(t, obj, it)
}

func ownedBy(it *item, uid types.UID) bool {
	return slices.ContainsFunc(metaOf(it.obj).GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == uid })
}
