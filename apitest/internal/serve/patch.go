// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/patch"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

func (c *Call) patch() (*Answer, error) {
	switch c.r.PatchType {
	case types.ApplyYAMLPatchType:
		return c.apply()
	case types.JSONPatchType, types.MergePatchType:
	case types.StrategicMergePatchType:
		if !c.kind.Dynamic {
			break
		}
		return nil, unsupportedBody("application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	default:
		e := statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type")
		e.ErrStatus.Details = &metav1.StatusDetails{}
		return nil, e
	}
	if !c.r.Named {
		return nil, methodNotAllowed()
	}
	if err := c.checkOptions("PatchOptions"); err != nil {
		return nil, err
	}
	it, err := c.applyPatch()
	if err != nil {
		return nil, err
	}
	return c.object(http.StatusOK, it)
}

func (c *Call) applyPatch() (*store.Item, error) {
	c.s.Store.Begin()
	defer c.s.Store.Commit()
	old := c.table().Items[c.key()]
	if old == nil {
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	obj, err := c.patched(old)
	if err != nil {
		return nil, err
	}
	if err := c.matchName(obj); err != nil {
		return nil, err
	}
	return c.replace(c.newWrite(), obj, old)
}

// patched returns old with the patch applied, in the stored version.
func (c *Call) patched(old *store.Item) (runtime.Object, error) {
	gvk := c.kind.Views[c.view].GV.WithKind(c.kind.Name)
	was := codec.JSON.Bytes(c.kind.ConvertTo(old.Obj, c.view))
	now, err := c.patchJSON(was)
	if err != nil {
		return nil, err
	}
	dec := c.kind.Decoder(c.view, codec.JSON, c.query.Get("fieldValidation") != metav1.FieldValidationIgnore)
	obj, got, err := dec.Decode(now, &gvk, nil)
	if err != nil {
		strict, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || obj == nil || c.query.Get("fieldValidation") == metav1.FieldValidationStrict {
			return nil, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
				field.Invalid(field.NewPath("patch"), string(now), err.Error())})
		}
		for _, e := range strict.Errors() {
			c.warnings = append(c.warnings, e.Error())
		}
	}
	if *got != gvk {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), string(now),
			fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), gvk.GroupVersion()))})
	}
	return c.kind.ConvertFrom(obj, c.view), nil
}

func (c *Call) patchJSON(was []byte) ([]byte, error) {
	switch c.r.PatchType {
	case types.StrategicMergePatchType:
		return patch.Strategic(was, c.r.Body, c.kind.Zero(c.view))
	case types.JSONPatchType:
		return patch.JSON(was, c.r.Body)
	}
	return patch.Merge(was, c.r.Body)
}
