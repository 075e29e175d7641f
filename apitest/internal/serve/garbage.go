// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// CollectGarbage runs the garbage collector once. It deletes every object whose
// owners are all gone, by kind, name and UID, and completes deletions with the
// Foreground and Orphan policies. It returns the deleted objects as
// "resource/namespace/name". Owners of unknown kinds count as existing.
func (s *Server) CollectGarbage() (deleted []string) {
	s.Store.Begin()
	defer s.Store.Commit()
	all := s.kinds()
	for {
		n := 0
		for _, k := range all {
			t := s.Store.Tables[k.Table()]
			if t == nil {
				continue
			}
			for _, it := range t.Sorted("") {
				if s.orphaned(it) && s.collect(k, it) {
					deleted = append(deleted, k.Resource+"/"+it.Key.Namespace+"/"+it.Key.Name)
					n++
				}
			}
			for _, it := range t.Sorted("") {
				s.propagate(t, it)
			}
		}
		if n == 0 {
			return deleted
		}
	}
}

// orphaned reports whether an object has owners of which none exists.
func (s *Server) orphaned(it *store.Item) bool {
	refs := codec.MetaOf(it.Obj).GetOwnerReferences()
	return len(refs) > 0 && !slices.ContainsFunc(refs, func(ref metav1.OwnerReference) bool { return s.exists(ref, it.Key.Namespace) })
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
	at := store.Key{Name: ref.Name}
	if k.Namespaced {
		at.Namespace = namespace
	}
	owner := s.Store.Table(k).Items[at]
	return owner != nil && codec.MetaOf(owner.Obj).GetUID() == ref.UID
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

// propagate deletes or orphans the dependents of an object whose deletion policy
// asks for it, and removes the finalizer of the policy.
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
			if !ownedBy(dep, m.GetUID()) {
				continue
			}
			if foreground {
				s.collect(k, dep)
				if dt.Items[dep.Key] != nil {
					left++
				}
				continue
			}
			obj := codec.Shallow(dep.Obj)
			codec.MetaOf(obj).SetOwnerReferences(slices.DeleteFunc(slices.Clone(codec.MetaOf(obj).GetOwnerReferences()),
				func(ref metav1.OwnerReference) bool { return ref.UID == m.GetUID() }))
			s.Store.Put(dt, obj, dep)
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

func ownedBy(it *store.Item, uid types.UID) bool {
	return slices.ContainsFunc(codec.MetaOf(it.Obj).GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == uid })
}
