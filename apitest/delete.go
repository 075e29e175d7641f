// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// deleteOptions returns the options in the body or, without a body, in the query.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	if len(c.r.Body) > 0 {
		m := codec.BodyMedia(c.r.ContentType)
		if m == nil {
			return nil, unsupportedBody("application/json, application/yaml, application/vnd.kubernetes.protobuf")
		}
		// Clients send the options in any group version, even an unknown one.
		obj, got, err := m.Decode(c.r.Body, &schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}, opts)
		if runtime.IsNotRegisteredError(err) && got != nil && got.Kind == "DeleteOptions" && !m.Proto {
			opts = &metav1.DeleteOptions{}
			obj, err = opts, utilyaml.Unmarshal(c.r.Body, opts)
		}
		if err == nil {
			var ok bool
			if opts, ok = obj.(*metav1.DeleteOptions); !ok {
				err = fmt.Errorf("%T cannot be handled as DeleteOptions", obj)
			}
		}
		if err != nil && c.s.minor < 35 {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}
		}
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	} else if len(c.query) > 0 {
		if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&c.query, opts, nil); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if errs := metav1validation.ValidateDeleteOptions(opts); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	if len(opts.DryRun) > 0 {
		c.s.journal.update(c.r, func(r *Request) { r.DryRun = true })
	}
	return opts, nil
}

func (c *call) delete() (*answer, error) {
	opts, err := c.deleteOptions()
	if err != nil {
		return nil, err
	}
	c.s.store.Begin()
	it := c.table().Items[c.key()]
	if it == nil {
		c.s.store.Commit()
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	last, gone, err := c.removeOne(it, *opts)
	c.s.store.Commit()
	if err != nil {
		return nil, err
	}
	if !gone || c.kind.ReturnsDeleted {
		return c.object(http.StatusOK, last)
	}
	m := codec.MetaOf(last.Obj)
	status := metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: m.GetName(), Group: c.resource().Group, Kind: c.kind.Resource, UID: m.GetUID()}}
	return &answer{code: http.StatusOK, contentType: c.accept.Name, body: encodeStatus(c.accept.Media, status)}, nil
}

// preconditions returns an error if m is another object or version than the
// client expects.
func (c *call) preconditions(p *metav1.Preconditions, m metav1.Object) error {
	var err error
	switch {
	case p == nil:
	case p.UID != nil && *p.UID != m.GetUID():
		err = fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, m.GetUID())
	case p.ResourceVersion != nil && *p.ResourceVersion != m.GetResourceVersion():
		err = fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, m.GetResourceVersion())
	}
	if err == nil {
		return nil
	}
	return apierrors.NewConflict(schema.GroupResource{Group: c.kind.Stored().Group, Resource: c.kind.Name}, m.GetName(), err)
}

// removeOne deletes an object, or marks it as deleted if its grace period or
// finalizers keep it. It returns the last state and whether the object is gone.
// The store must be locked.
func (c *call) removeOne(it *store.Item, opts metav1.DeleteOptions) (last *store.Item, gone bool, err error) {
	m := codec.MetaOf(it.Obj)
	if err := c.s.admitDelete(c, it.Obj); err != nil {
		return nil, false, err
	}
	if err := c.preconditions(opts.Preconditions, m); err != nil {
		return nil, false, err
	}
	obj := codec.Shallow(it.Obj)
	if c.kind.OnDelete != nil {
		if keep, changed := c.kind.OnDelete(obj); keep && changed && !c.r.DryRun && len(opts.DryRun) == 0 {
			return c.s.store.Put(c.table(), obj, it), false, nil
		} else if keep {
			return it, false, nil
		}
	}
	graceful, pending := markDeleted(c.kind, obj, &opts)
	if pending {
		return it, false, nil
	}
	om := codec.MetaOf(obj)
	if f, ok := propagationFinalizers(om.GetFinalizers(), &opts); ok {
		om.SetFinalizers(f)
	}
	finalizers := len(om.GetFinalizers()) > 0
	if !graceful && finalizers {
		markAsDeleting(om)
	}
	if c.r.DryRun || len(opts.DryRun) > 0 {
		return store.NewItem(obj, it.RV), !finalizers && !(graceful && *opts.GracePeriodSeconds > 0), nil
	}
	st, t := c.s.store, c.table()
	if graceful || finalizers {
		if !sameMeta(om, m) {
			it = st.Put(t, obj, it)
		}
		if finalizers || graceful && *opts.GracePeriodSeconds > 0 {
			return it, false, nil
		}
	}
	return st.Remove(t, it), true, nil
}

// markDeleted begins or shortens a graceful deletion. pending means that the
// deletion is under way and the request changes nothing.
func markDeleted(k *rules.Kind, obj runtime.Object, opts *metav1.DeleteOptions) (graceful, pending bool) {
	m := codec.MetaOf(obj)
	if k.Graceful == nil {
		return false, false
	}
	if begun := m.GetDeletionTimestamp(); begun != nil {
		left := m.GetDeletionGracePeriodSeconds()
		if left == nil || *left == 0 {
			return false, false
		}
		if opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds >= *left {
			return false, true
		}
		// Only a shorter grace period counts, from when the deletion began.
		grace := max(*opts.GracePeriodSeconds, 0)
		if *opts.GracePeriodSeconds < 0 {
			grace = 1
		}
		opts.GracePeriodSeconds = &grace
		at := metav1.NewTime(begun.Add(time.Duration(grace-*left) * time.Second))
		m.SetDeletionTimestamp(&at)
		m.SetDeletionGracePeriodSeconds(&grace)
		return true, false
	}
	k.Graceful(obj, opts)
	grace := *opts.GracePeriodSeconds
	at := metav1.NewTime(metav1.Now().Rfc3339Copy().Add(time.Duration(grace) * time.Second))
	m.SetDeletionTimestamp(&at)
	m.SetDeletionGracePeriodSeconds(&grace)
	if g := m.GetGeneration(); g > 0 {
		m.SetGeneration(g + 1)
	}
	return true, false
}

// markAsDeleting marks an object that only its finalizers keep.
func markAsDeleting(m metav1.Object) {
	now := metav1.Now().Rfc3339Copy()
	if m.GetDeletionTimestamp() == nil && m.GetGeneration() > 0 {
		m.SetGeneration(m.GetGeneration() + 1)
	}
	if t := m.GetDeletionTimestamp(); t == nil || t.After(now.Time) {
		m.SetDeletionTimestamp(&now)
	}
	zero := int64(0)
	m.SetDeletionGracePeriodSeconds(&zero)
}

// propagationFinalizers adds and removes the finalizers that stand for a
// deletion's propagation policy; ok is false if nothing changes.
func propagationFinalizers(have []string, opts *metav1.DeleteOptions) (want []string, ok bool) {
	policy := metav1.DeletePropagationBackground
	if opts.PropagationPolicy != nil {
		policy = *opts.PropagationPolicy
	} else if opts.OrphanDependents != nil && *opts.OrphanDependents {
		policy = metav1.DeletePropagationOrphan
	} else if opts.OrphanDependents == nil {
		return nil, false
	}
	for _, f := range have {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			want = append(want, f)
		}
	}
	switch policy {
	case metav1.DeletePropagationOrphan:
		want = append(want, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationForeground:
		want = append(want, metav1.FinalizerDeleteDependents)
	}
	return want, !slices.Equal(want, have)
}

func sameMeta(a, b metav1.Object) bool {
	return slices.Equal(a.GetFinalizers(), b.GetFinalizers()) &&
		a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) &&
		(a.GetDeletionGracePeriodSeconds() == nil) == (b.GetDeletionGracePeriodSeconds() == nil) &&
		(a.GetDeletionGracePeriodSeconds() == nil || *a.GetDeletionGracePeriodSeconds() == *b.GetDeletionGracePeriodSeconds())
}

func (c *call) deleteCollection() (*answer, error) {
	if c.kind.NoCollection {
		return nil, methodNotAllowed()
	}
	opts, err := c.deleteOptions()
	if err != nil {
		return nil, err
	}
	sel, err := c.selector()
	if err != nil {
		return nil, err
	}
	list, err := c.listOptions(false)
	if err != nil {
		return nil, err
	}
	if _, err := parseRV(list.ResourceVersion); err != nil {
		return nil, err
	}
	st := c.s.store
	st.Begin()
	rv := st.RV
	var items []*store.Item
	for _, it := range c.table().Sorted(sel.namespace) {
		if sel.matches(it.Obj) {
			items = append(items, it)
		}
	}
	for _, it := range items {
		if _, _, err = c.removeOne(it, *opts); err != nil {
			break
		}
	}
	st.Commit()
	if err != nil {
		return nil, err
	}
	return c.encodeList(items, metav1.ListMeta{ResourceVersion: store.FormatRV(rv)})
}

// CollectGarbage runs the garbage collector once. It deletes every object whose
// owners are all gone, by kind, name and UID, and completes deletions with the
// Foreground and Orphan policies. It returns the deleted objects as
// "resource/namespace/name". Owners of unknown kinds count as existing.
func (s *Server) CollectGarbage() (deleted []string) {
	s.store.Begin()
	defer s.store.Commit()
	all := s.kinds()
	for {
		n := 0
		for _, k := range all {
			t := s.store.Tables[k.Table()]
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
	owner := s.store.Table(k).Items[at]
	return owner != nil && codec.MetaOf(owner.Obj).GetUID() == ref.UID
}

// asServer returns a call for a change that the server makes itself.
func (s *Server) asServer(k *rules.Kind) *call {
	return &call{s: s, r: &Request{User: admin, Group: k.Stored().Group, Resource: k.Resource}, ctx: context.Background(), kind: k}
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
		dt := s.store.Tables[k.Table()]
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
			s.store.Put(dt, obj, dep)
		}
	}
	if left > 0 {
		return
	}
	finalizers := slices.DeleteFunc(slices.Clone(m.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	if len(finalizers) == 0 && (m.GetDeletionGracePeriodSeconds() == nil || *m.GetDeletionGracePeriodSeconds() == 0) {
		s.store.Remove(t, it)
		return
	}
	obj := codec.Shallow(it.Obj)
	codec.MetaOf(obj).SetFinalizers(finalizers)
	s.store.Put(t, obj, it)
}

func ownedBy(it *store.Item, uid types.UID) bool {
	return slices.ContainsFunc(codec.MetaOf(it.Obj).GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == uid })
}

// namespaceDelay is the time from the deletion of a namespace, or of the last
// object that kept it, until the server empties and removes it. On a real
// cluster kube-controller-manager does that.
const namespaceDelay = 100 * time.Millisecond

// observe handles the changes of objects that change the server: namespaces and
// CustomResourceDefinitions. The store must be locked.
func (s *Server) observe(ev store.Event) {
	k := ev.Kind
	switch {
	case k == s.store.Named["namespaces"].Kind:
		if ev.Typ != watch.Deleted && terminating(ev.Cur) && (ev.Prev == nil || !terminating(ev.Prev)) {
			s.emptyLater(ev.Cur.Key.Name)
		}
	case k.Name == "CustomResourceDefinition" && k.Stored() == rules.DefinitionVersion:
		s.defined(ev)
	case k.Namespaced && ev.Typ == watch.Deleted:
		if ns := s.store.Named["namespaces"].Items[store.Key{Name: ev.Cur.Key.Namespace}]; ns != nil && terminating(ns) {
			s.emptyLater(ns.Key.Name)
		}
	}
}

func terminating(it *store.Item) bool { return codec.MetaOf(it.Obj).GetDeletionTimestamp() != nil }

// emptyLater empties a namespace after namespaceDelay. The store must be locked.
func (s *Server) emptyLater(name string) {
	if s.store.Emptying[name] {
		return
	}
	if s.store.Emptying == nil {
		s.store.Emptying = map[string]bool{}
	}
	s.store.Emptying[name] = true
	time.AfterFunc(namespaceDelay, func() {
		s.store.Begin()
		defer s.store.Commit()
		delete(s.store.Emptying, name)
		s.empty(name)
	})
}

// empty deletes the objects in a namespace as a client would, with grace periods
// and finalizers, and removes the namespace if no object is left. The store must
// be locked.
func (s *Server) empty(name string) {
	t := s.store.Named["namespaces"]
	ns := t.Items[store.Key{Name: name}]
	if ns == nil || !terminating(ns) {
		return
	}
	left := 0
	for _, k := range s.kinds() {
		contents := s.store.Tables[k.Table()]
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
			s.store.Put(t, obj, ns)
		}
		return
	}
	s.store.Remove(t, ns)
}
