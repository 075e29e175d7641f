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
)

// deleteOptions returns the options in the body or, without a body, in the query.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	if len(c.r.Body) > 0 {
		m := bodyMedia(c.r.ContentType)
		if m == nil {
			return nil, unsupportedBody("application/json, application/yaml, application/vnd.kubernetes.protobuf")
		}
		// Clients send the options in any group version, even an unknown one.
		obj, got, err := m.Decode(c.r.Body, &schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}, opts)
		if runtime.IsNotRegisteredError(err) && got != nil && got.Kind == "DeleteOptions" && !m.proto {
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
	c.s.store.begin()
	it := c.table().items[c.key()]
	if it == nil {
		c.s.store.commit()
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	last, gone, err := c.removeOne(it, *opts)
	c.s.store.commit()
	if err != nil {
		return nil, err
	}
	if !gone || c.kind.returnsDeleted {
		return c.object(http.StatusOK, last)
	}
	m := metaOf(last.obj)
	status := metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: m.GetName(), Group: c.resource().Group, Kind: c.kind.resource, UID: m.GetUID()}}
	return &answer{code: http.StatusOK, contentType: c.accept.name, body: encodeStatus(c.accept.media, status)}, nil
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
	return apierrors.NewConflict(schema.GroupResource{Group: c.kind.stored().Group, Resource: c.kind.name}, m.GetName(), err)
}

// removeOne deletes an object, or marks it as deleted if its grace period or
// finalizers keep it. It returns the last state and whether the object is gone.
// store.mu must be held.
func (c *call) removeOne(it *item, opts metav1.DeleteOptions) (last *item, gone bool, err error) {
	m := metaOf(it.obj)
	if err := c.s.admitDelete(c, it.obj); err != nil {
		return nil, false, err
	}
	if err := c.preconditions(opts.Preconditions, m); err != nil {
		return nil, false, err
	}
	obj := shallow(it.obj)
	if c.kind.onDelete != nil {
		if keep, changed := c.kind.onDelete(obj); keep && changed && !c.r.DryRun && len(opts.DryRun) == 0 {
			return c.s.store.put(c.table(), obj, it), false, nil
		} else if keep {
			return it, false, nil
		}
	}
	graceful, pending := markDeleted(c.kind, obj, &opts)
	if pending {
		return it, false, nil
	}
	om := metaOf(obj)
	if f, ok := propagationFinalizers(om.GetFinalizers(), &opts); ok {
		om.SetFinalizers(f)
	}
	finalizers := len(om.GetFinalizers()) > 0
	if !graceful && finalizers {
		markAsDeleting(om)
	}
	if c.r.DryRun || len(opts.DryRun) > 0 {
		return newItem(obj, it.rv), !finalizers && !(graceful && *opts.GracePeriodSeconds > 0), nil
	}
	st, t := c.s.store, c.table()
	if graceful || finalizers {
		if !sameMeta(om, m) {
			it = st.put(t, obj, it)
		}
		if finalizers || graceful && *opts.GracePeriodSeconds > 0 {
			return it, false, nil
		}
	}
	return st.remove(t, it), true, nil
}

// markDeleted begins or shortens a graceful deletion. pending means that the
// deletion is under way and the request changes nothing.
func markDeleted(k *kind, obj runtime.Object, opts *metav1.DeleteOptions) (graceful, pending bool) {
	m := metaOf(obj)
	if k.graceful == nil {
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
	k.graceful(obj, opts)
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
	if c.kind.noCollection {
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
	st.begin()
	rv := st.rv
	var items []*item
	for _, it := range c.table().sorted(sel.namespace) {
		if sel.matches(it.obj) {
			items = append(items, it)
		}
	}
	for _, it := range items {
		if _, _, err = c.removeOne(it, *opts); err != nil {
			break
		}
	}
	st.commit()
	if err != nil {
		return nil, err
	}
	return c.encodeList(items, metav1.ListMeta{ResourceVersion: formatRV(rv)})
}

// CollectGarbage runs the garbage collector once. It deletes every object whose
// owners are all gone, by kind, name and UID, and completes deletions with the
// Foreground and Orphan policies. It returns the deleted objects as
// "resource/namespace/name". Owners of unknown kinds count as existing.
func (s *Server) CollectGarbage() (deleted []string) {
	s.store.begin()
	defer s.store.commit()
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

// orphaned reports whether an object has owners of which none exists.
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

// asServer returns a call for a change that the server makes itself.
func (s *Server) asServer(k *kind) *call {
	return &call{s: s, r: &Request{User: admin, Group: k.stored().Group, Resource: k.resource}, ctx: context.Background(), kind: k}
}

// collect deletes an object as a client would, with grace period and finalizers.
// It reports whether the object changed.
func (s *Server) collect(k *kind, it *item) bool {
	if metaOf(it.obj).GetDeletionTimestamp() != nil {
		return false
	}
	uid := metaOf(it.obj).GetUID()
	_, _, err := s.asServer(k).removeOne(it, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	return err == nil
}

// propagate deletes or orphans the dependents of an object whose deletion policy
// asks for it, and removes the finalizer of the policy.
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

// namespaceDelay is the time from the deletion of a namespace, or of the last
// object that kept it, until the server empties and removes it. On a real
// cluster kube-controller-manager does that.
const namespaceDelay = 100 * time.Millisecond

// observe handles the changes of objects that change the server: namespaces and
// CustomResourceDefinitions. store.mu must be held.
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

// emptyLater empties a namespace after namespaceDelay. store.mu must be held.
func (s *Server) emptyLater(name string) {
	if s.store.emptying[name] {
		return
	}
	if s.store.emptying == nil {
		s.store.emptying = map[string]bool{}
	}
	s.store.emptying[name] = true
	time.AfterFunc(namespaceDelay, func() {
		s.store.begin()
		defer s.store.commit()
		delete(s.store.emptying, name)
		s.empty(name)
	})
}

// empty deletes the objects in a namespace as a client would, with grace periods
// and finalizers, and removes the namespace if no object is left. store.mu must
// be held.
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
				_, _, _ = s.asServer(k).removeOne(it, metav1.DeleteOptions{}) // an object that may not be deleted stays
			}
			if contents.items[it.key] != nil {
				left++
			}
		}
	}
	if left > 0 {
		return // the removal of the last object calls empty again
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
