// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// namespaceDelay is the time from the deletion of a namespace, or of the last
// object that kept it, until the server empties and removes it. On a real
// cluster a controller does that, a moment later.
const namespaceDelay = 100 * time.Millisecond

// observe follows the changes that change the server itself. The lock of the
// store is held.
func (s *Server) observe(ev event) {
	k := ev.kind
	switch {
	case k == s.store.named["namespaces"].kind:
		if ev.typ != watch.Deleted && terminating(ev.cur) && (ev.prev == nil || !terminating(ev.prev)) {
			s.emptyLater(ev.cur.key.name)
		}
	case k.name == "CustomResourceDefinition" && k.stored() == crdGroupVersion:
		s.defined(ev)
	case k.namespaced && ev.typ == watch.Deleted:
		if ns := s.store.named["namespaces"].items[key{name: ev.cur.key.namespace}]; ns != nil && terminating(ns) {
			s.emptyLater(ns.key.name)
		}
	}
}

func terminating(it *item) bool { return metaOf(it.obj).GetDeletionTimestamp() != nil }

// emptyLater empties a namespace after a while. The lock of the store is held.
func (s *Server) emptyLater(name string) {
	if s.store.emptying[name] {
		return
	}
	if s.store.emptying == nil {
		s.store.emptying = map[string]bool{}
	}
	s.store.emptying[name] = true
	time.AfterFunc(namespaceDelay, func() {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		delete(s.store.emptying, name)
		s.empty(name)
	})
}

// empty deletes what is in a namespace as a client would, so that grace periods
// and finalizers count, and removes the namespace if nothing is left. The lock
// of the store is held.
func (s *Server) empty(name string) {
	t := s.store.named["namespaces"]
	ns := t.items[key{name: name}]
	if ns == nil || !terminating(ns) {
		return
	}
	left := 0
	for _, k := range s.kinds() {
		contents := s.store.tables[k.table()]
		if contents == nil || !k.namespaced {
			continue
		}
		for _, it := range contents.sorted(name) {
			if !terminating(it) {
				_, _, _ = s.asServer(k).removeOne(it, metav1.DeleteOptions{}) // what is refused stays
			}
			if contents.items[it.key] != nil {
				left++
			}
		}
	}
	if left > 0 {
		return // the removal of the last of them comes back here
	}
	obj := shallow(ns.obj).(*corev1.Namespace)
	obj.Spec.Finalizers = slices.DeleteFunc(slices.Clone(obj.Spec.Finalizers), func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if len(obj.Spec.Finalizers) > 0 || len(obj.Finalizers) > 0 {
		if len(obj.Spec.Finalizers) != len(ns.obj.(*corev1.Namespace).Spec.Finalizers) {
			s.store.put(t, obj, ns)
		}
		return
	}
	s.store.remove(t, ns)
}
