// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"net/url"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
)

var noGVK schema.GroupVersionKind

// selector is the part of a list, watch or deletecollection that says which
// objects it is about.
type selector struct {
	kind      *kind
	namespace string // empty for all
	labels    labels.Selector
	fields    fields.Requirements
	minor     int // the server's minor version
}

func (c *call) selector() (*selector, error) {
	sel := &selector{kind: c.kind, minor: c.s.minor, labels: labels.Everything()}
	if c.kind.namespaced {
		sel.namespace = c.r.Namespace
	}
	var err error
	if c.r.LabelSelector != "" {
		if sel.labels, err = labels.Parse(c.r.LabelSelector); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if c.r.FieldSelector != "" {
		fs, err := fields.ParseSelector(c.r.FieldSelector)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		sel.fields = fs.Requirements()
		for i, req := range sel.fields {
			if names := c.kind.views[c.view].labels; names != nil && req.Field != "metadata.name" && req.Field != "metadata.namespace" {
				if sel.fields[i].Field = names[req.Field]; sel.fields[i].Field == "" {
					sel.fields[i].Field = "?" + req.Field
				}
			}
			if !sel.known(sel.fields[i].Field) {
				if c.kind.fields == nil {
					return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", req.Field))
				}
				unsupported := "field label not supported"
				if c.kind.resource == "resourceslices" { // it says more
					unsupported += " for " + c.kind.views[c.view].gv.WithKind(c.kind.name).String()
				}
				return nil, apierrors.NewBadRequest(unsupported + ": " + req.Field)
			}
		}
	}
	return sel, nil
}

func (sel *selector) known(field string) bool {
	switch field {
	case "metadata.name":
		return true
	case "metadata.namespace":
		return sel.kind.namespaced
	}
	if sel.kind.fields == nil || field == resourcev1.ResourceSliceSelectorPoolName && sel.minor < 37 {
		return false
	}
	_, ok := sel.kind.fields(sel.kind.zero(0), field)
	return ok
}

func (sel *selector) everything() bool { return sel.labels.Empty() && len(sel.fields) == 0 }

func (sel *selector) matches(obj runtime.Object) bool {
	m := metaOf(obj)
	if sel.namespace != "" && m.GetNamespace() != sel.namespace {
		return false
	}
	for _, req := range sel.fields {
		var v string
		switch req.Field {
		case "metadata.name":
			v = m.GetName()
		case "metadata.namespace":
			v = m.GetNamespace()
		default:
			v, _ = sel.kind.fields(obj, req.Field)
		}
		if (v == req.Value) == (req.Operator == selection.NotEquals) {
			return false
		}
	}
	return sel.labels.Empty() || sel.labels.Matches(labels.Set(m.GetLabels()))
}

// listOptions reads and validates the options of a list or watch.
func (c *call) listOptions(watchListOK bool) (*metav1.ListOptions, error) {
	opts := &metav1.ListOptions{}
	q := url.Values{}
	for k, v := range c.query {
		// Selectors are read elsewhere.
		if k != "labelSelector" && k != "fieldSelector" {
			q[k] = v
		}
	}
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&q, opts, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	internal := &internalversion.ListOptions{
		Watch: opts.Watch, AllowWatchBookmarks: opts.AllowWatchBookmarks, ResourceVersion: opts.ResourceVersion,
		ResourceVersionMatch: opts.ResourceVersionMatch, TimeoutSeconds: opts.TimeoutSeconds, Limit: opts.Limit,
		Continue: opts.Continue, SendInitialEvents: opts.SendInitialEvents,
	}
	if errs := internalvalidation.ValidateListOptions(internal, watchListOK); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if opts.Watch {
		// A watch that starts anywhere gets its initial events anyhow, and
		// with bookmarks the end of them.
		internalversion.SetListOptionsDefaults(internal, watchListOK)
		opts.SendInitialEvents = internal.SendInitialEvents
	}
	return opts, nil
}
