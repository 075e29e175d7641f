// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// The functions in this file change the stored objects as another client would,
// but without a request: there is no journal entry, fault, authorization or
// validation. Watches send the changes.

// Put creates or replaces an object and returns the stored object. It sets the
// UID, creation time and generation that obj lacks, ignores the resourceVersion
// in obj, and stores the status of obj. It panics if the server does not have the
// kind of obj.
func (s *Server) Put(obj runtime.Object) runtime.Object {
	k, v := s.core.KindOf(obj)
	obj = k.From(obj, v)
	m := codec.MetaOf(obj)
	s.core.Store.Begin()
	defer s.core.Store.Commit()
	t := s.core.Store.Table(k)
	old := t.Items[store.Key{Namespace: m.GetNamespace(), Name: m.GetName()}]
	if old != nil {
		m.SetUID(codec.MetaOf(old.Obj).GetUID())
		m.SetCreationTimestamp(codec.MetaOf(old.Obj).GetCreationTimestamp())
	}
	if m.GetUID() == "" {
		m.SetUID(s.core.NewUID())
	}
	if t := m.GetCreationTimestamp(); t.IsZero() {
		m.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	}
	if k.Spec != nil && m.GetGeneration() == 0 {
		m.SetGeneration(1)
	}
	k.SetDefaults(obj, v)
	if ns, ok := obj.(*corev1.Namespace); ok && old == nil && ns.DeletionTimestamp == nil && ns.Spec.Finalizers == nil {
		ns.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes} // the namespace is emptied before it is removed
	}
	return s.core.Store.Put(t, obj, old).Into(k, 0)
}

// Get returns a copy of the object of type T with a namespace and a name, or nil
// if it does not exist. It panics if the server does not have the kind T.
func Get[T runtime.Object](s *Server, namespace, name string) (obj T) {
	k, v := s.core.KindOf(newOf[T]())
	s.core.Store.Lock()
	it := s.core.Store.Table(k).Items[store.Key{Namespace: namespace, Name: name}]
	s.core.Store.Unlock()
	if it == nil {
		return obj
	}
	return it.Into(k, v).(T)
}

// List returns copies of all objects of type T in a namespace, or in all
// namespaces for "", sorted by namespace and name.
func List[T runtime.Object](s *Server, namespace string) []T {
	k, v := s.core.KindOf(newOf[T]())
	s.core.Store.Lock()
	items := s.core.Store.Table(k).Sorted(namespace)
	s.core.Store.Unlock()
	out := make([]T, len(items))
	for i, it := range items {
		out[i] = it.Into(k, v).(T)
	}
	return out
}

// Edit changes an object of type T, including its status and metadata, and
// returns it, or nil if it does not exist. f changes a private copy and must not
// use the server. Edit writes nothing if f changes nothing.
func Edit[T runtime.Object](s *Server, namespace, name string, f func(T)) (obj T) {
	k, v := s.core.KindOf(newOf[T]())
	s.core.Store.Begin()
	defer s.core.Store.Commit()
	t := s.core.Store.Table(k)
	old := t.Items[store.Key{Namespace: namespace, Name: name}]
	if old == nil {
		return obj
	}
	obj = old.Into(k, v).(T)
	f(obj)
	stored := k.From(obj, v)
	if equality.Semantic.DeepEqual(stored, old.Obj) {
		return obj
	}
	return s.edited(t, stored, old).Into(k, v).(T)
}

// edited stores obj in place of old, with a new generation if its spec changed.
func (s *Server) edited(t *store.Table, obj runtime.Object, old *store.Item) *store.Item {
	if t.Kind.Spec != nil && !t.Kind.SameSpec(obj, old.Obj) {
		codec.MetaOf(obj).SetGeneration(codec.MetaOf(old.Obj).GetGeneration() + 1)
	}
	return s.core.Store.Put(t, obj, old)
}

// Remove removes an object of type T immediately, without a grace period and whatever its
// finalizers, and reports whether it existed. A test of finalizers must delete as kubectl does,
// with a client of Server.Client, or with explore.Delete in a step of an exploration.
func Remove[T runtime.Object](s *Server, namespace, name string) bool {
	k, _ := s.core.KindOf(newOf[T]())
	s.core.Store.Begin()
	defer s.core.Store.Commit()
	t := s.core.Store.Table(k)
	it := t.Items[store.Key{Namespace: namespace, Name: name}]
	if it == nil {
		return false
	}
	s.core.Store.Remove(t, it)
	return true
}

// ResourceVersion returns the newest resourceVersion of any object.
func (s *Server) ResourceVersion() string {
	return s.core.Store.Newest()
}

// newOf makes an object of the pointer type T.
func newOf[T runtime.Object]() T {
	return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
}

// CollectGarbage runs the garbage collector once. It deletes every object whose
// owners are all gone, by kind, name and UID, removes references to owners that are
// gone if another one is left, and completes deletions with the Foreground and Orphan
// policies. It returns the deleted objects as "resource/namespace/name". Owners of
// unknown kinds count as existing.
func (s *Server) CollectGarbage() (deleted []string) { return s.core.CollectGarbage() }
