// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// namespaceDelay is the time from the deletion of a namespace, or of the last
// object that kept it, until the server empties and removes it. On a real
// cluster kube-controller-manager does that.
const namespaceDelay = 100 * time.Millisecond

// observe handles the changes of objects that change the server: namespaces and
// CustomResourceDefinitions. The store must be locked.
func (s *Server) observe(ev store.Event) {
	k := ev.Kind
	switch {
	case k == s.Store.Named["namespaces"].Kind:
		if ev.Typ != watch.Deleted && terminating(ev.Cur) && (ev.Prev == nil || !terminating(ev.Prev)) {
			s.emptyLater(ev.Cur.Key.Name)
		}
	case k.Name == "CustomResourceDefinition" && k.Stored() == rules.DefinitionVersion:
		s.defined(ev)
	case k.Namespaced && ev.Typ == watch.Deleted:
		if ns := s.Store.Named["namespaces"].Items[store.Key{Name: ev.Cur.Key.Namespace}]; ns != nil && terminating(ns) {
			s.emptyLater(ns.Key.Name)
		}
	}
}

func terminating(it *store.Item) bool { return codec.MetaOf(it.Obj).GetDeletionTimestamp() != nil }

// emptyLater empties a namespace after namespaceDelay. The store must be locked.
func (s *Server) emptyLater(name string) {
	if s.Store.Emptying[name] {
		return
	}
	if s.Store.Emptying == nil {
		s.Store.Emptying = map[string]bool{}
	}
	s.Store.Emptying[name] = true
	time.AfterFunc(namespaceDelay, func() {
		s.Store.Begin()
		defer s.Store.Commit()
		delete(s.Store.Emptying, name)
		s.empty(name)
	})
}

// empty deletes the objects in a namespace as a client would, with grace periods
// and finalizers, and removes the namespace if no object is left. The store must
// be locked.
func (s *Server) empty(name string) {
	t := s.Store.Named["namespaces"]
	ns := t.Items[store.Key{Name: name}]
	if ns == nil || !terminating(ns) {
		return
	}
	left := 0
	for _, k := range s.kinds() {
		contents := s.Store.Tables[k.Table()]
		if contents == nil || !k.Namespaced {
			continue
		}
		for _, it := range contents.Sorted(name) {
			if !terminating(it) {
				_, _, _ = s.asServer(k).removeOne(it, metav1.DeleteOptions{}) // an object that may not be deleted stays
			}
			if contents.Items[it.Key] != nil {
				left++
			}
		}
	}
	if left > 0 {
		return // the removal of the last object calls empty again
	}
	obj := codec.Shallow(ns.Obj).(*corev1.Namespace)
	obj.Spec.Finalizers = slices.DeleteFunc(slices.Clone(obj.Spec.Finalizers), func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if len(obj.Spec.Finalizers) > 0 || len(obj.Finalizers) > 0 {
		if len(obj.Spec.Finalizers) != len(ns.Obj.(*corev1.Namespace).Spec.Finalizers) {
			s.Store.Put(t, obj, ns)
		}
		return
	}
	s.Store.Remove(t, ns)
}
