// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deleteOptions come in the body or, without one, in the query.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	if len(c.r.Body) > 0 {
		// Clients label the options with any group version they like.
		obj, _, err := mediaFor(c.r.ContentType).Decode(c.r.Body, &schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}, opts)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		var ok bool
		if opts, ok = obj.(*metav1.DeleteOptions); !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%T cannot be handled as DeleteOptions", obj))
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
	c.s.store.mu.Lock()
	it := c.table().items[c.key()]
	if it == nil {
		c.s.store.mu.Unlock()
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	last, gone, err := c.removeOne(it, *opts)
	c.s.store.mu.Unlock()
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

// preconditions refuses to delete another object or version than the client
// means.
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

// removeOne deletes an object as far as it may go at once. It returns its
// last state and whether it is gone. The lock of the store is held.
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

// markDeleted begins or shortens a graceful deletion. pending means that
// nothing is to be done because the deletion is under way.
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
	st := c.s.store
	st.mu.Lock()
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
	st.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return c.encodeList(items, metav1.ListMeta{ResourceVersion: formatRV(rv)})
}
