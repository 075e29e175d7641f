// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

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
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// deleteOptions returns the options in the body or, without a body, in the query.
func (c *Call) deleteOptions() (*metav1.DeleteOptions, error) {
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
		if err != nil && c.s.Minor < 35 {
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
		c.s.Journal.Update(c.r, func(r *request.Request) { r.DryRun = true })
	}
	return opts, nil
}

func (c *Call) delete() (*Answer, error) {
	opts, err := c.deleteOptions()
	if err != nil {
		return nil, err
	}
	c.s.Store.Begin()
	it := c.table().Items[c.key()]
	if it == nil {
		c.s.Store.Commit()
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	last, gone, err := c.removeOne(it, *opts)
	c.s.Store.Commit()
	if err != nil {
		return nil, err
	}
	if !gone || c.kind.ReturnsDeleted {
		return c.object(http.StatusOK, last)
	}
	m := codec.MetaOf(last.Obj)
	status := metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: m.GetName(), Group: c.resource().Group, Kind: c.kind.Resource, UID: m.GetUID()}}
	return &Answer{Code: http.StatusOK, ContentType: c.accept.Name, Body: encodeStatus(c.accept.Media, status)}, nil
}

// preconditions returns an error if m is another object or version than the
// client expects.
func (c *Call) preconditions(p *metav1.Preconditions, m metav1.Object) error {
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
func (c *Call) removeOne(it *store.Item, opts metav1.DeleteOptions) (last *store.Item, gone bool, err error) {
	m := codec.MetaOf(it.Obj)
	if err := c.admitDelete(it.Obj); err != nil {
		return nil, false, err
	}
	if err := c.preconditions(opts.Preconditions, m); err != nil {
		return nil, false, err
	}
	obj := codec.Shallow(it.Obj)
	if c.kind.OnDelete != nil {
		if keep, changed := c.kind.OnDelete(obj); keep && changed && !c.r.DryRun && len(opts.DryRun) == 0 {
			return c.s.Store.Put(c.table(), obj, it), false, nil
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
	st, t := c.s.Store, c.table()
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

func (c *Call) deleteCollection() (*Answer, error) {
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
	st := c.s.Store
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
