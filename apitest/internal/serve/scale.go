// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/patch"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// scale serves /scale, which reads and changes the number of replicas of an object.
func (c *Call) scale() (*Answer, error) {
	var it *store.Item
	var err error
	switch c.r.Verb {
	case "get":
		it, err = c.lookup()
	case "update", "patch":
		if err = c.checkOptions("UpdateOptions"); err == nil {
			it, err = c.rescale()
		}
	default:
		return nil, methodNotAllowed()
	}
	if err != nil {
		return nil, err
	}
	s, err := c.kind.ScaleOf(it.Obj)
	if err != nil {
		return nil, err
	}
	return &Answer{Code: http.StatusOK, ContentType: c.accept.Name, Body: c.accept.Bytes(s)}, nil
}

// rescale stores the number of replicas that the client sends.
func (c *Call) rescale() (*store.Item, error) {
	c.s.Store.Begin()
	defer c.s.Store.Commit()
	old := c.table().Items[c.key()]
	if old == nil {
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	was, err := c.kind.ScaleOf(old.Obj)
	if err != nil {
		return nil, err
	}
	want, err := c.sentScale(was)
	if err != nil {
		return nil, err
	}
	if err := c.matchName(want); err != nil {
		return nil, err
	}
	switch {
	case want.UID != "" && want.UID != was.UID:
		return nil, apierrors.NewConflict(c.resource(), c.r.Name, c.preconditionFailed(want.UID, was.UID))
	case want.ResourceVersion != "" && want.ResourceVersion != was.ResourceVersion:
		return nil, apierrors.NewConflict(c.resource(), c.r.Name, errors.New(optimisticLock))
	case want.Spec.Replicas < 0:
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: autoscalingv1.GroupName, Kind: "Scale"}, c.r.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), want.Spec.Replicas, "must be greater than or equal to 0")})
	}
	obj := old.Obj.DeepCopyObject()
	if err := c.kind.SetReplicas(obj, want.Spec.Replicas); err != nil {
		return nil, err
	}
	w := c.newWrite()
	w.rules.Subresource = "" // it changes the spec, as a write of the object
	return c.replace(w, obj, old)
}

// sentScale returns the Scale in the body, or the stored one with the patch in the body.
func (c *Call) sentScale(was *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	if c.r.Verb == "update" {
		obj, err := c.decodeAs(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
		if err != nil {
			return nil, err
		}
		return obj.(*autoscalingv1.Scale), nil
	}
	doc := codec.JSON.Bytes(was)
	var err error
	switch c.r.PatchType {
	case types.JSONPatchType:
		doc, err = patch.JSON(doc, c.r.Body)
	case types.MergePatchType, types.StrategicMergePatchType: // a Scale has no lists, so they are the same
		doc, err = patch.Merge(doc, c.r.Body)
	default:
		return nil, unsupportedBody("application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json")
	}
	if err != nil {
		return nil, err
	}
	now := &autoscalingv1.Scale{}
	if err := runtime.DecodeInto(codec.JSON, doc, now); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return now, nil
}
