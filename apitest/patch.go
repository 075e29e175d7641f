// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *call) patch() (*answer, error) {
	switch c.r.PatchType {
	case types.ApplyYAMLPatchType:
		return c.apply()
	case types.JSONPatchType, types.MergePatchType:
	case types.StrategicMergePatchType:
		if !c.kind.dynamic {
			break
		}
		return nil, unsupportedBody("application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	default:
		e := statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type")
		e.ErrStatus.Details = &metav1.StatusDetails{}
		return nil, e
	}
	if !c.r.named {
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

func (c *call) applyPatch() (*item, error) {
	c.s.store.mu.Lock()
	defer c.s.store.mu.Unlock()
	old := c.table().items[c.key()]
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

// patched is what the patch makes of old, as it is stored.
func (c *call) patched(old *item) (runtime.Object, error) {
	gvk := c.kind.views[c.view].gv.WithKind(c.kind.name)
	was := jsonCodec.encode(c.kind.convertTo(old.obj, c.view))
	now, err := c.patchJSON(was)
	if err != nil {
		return nil, err
	}
	dec := c.kind.decoder(jsonCodec, c.query.Get("fieldValidation") != metav1.FieldValidationIgnore)
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
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), gvk.GroupVersion()))
	}
	return c.kind.convertFrom(obj, c.view), nil
}

func (c *call) patchJSON(was []byte) ([]byte, error) {
	switch c.r.PatchType {
	case types.StrategicMergePatchType:
		now, err := c.strategicMerge(was)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return now, nil
	case types.JSONPatchType:
		return jsonPatch(was, c.r.Body)
	}
	var doc, patch any
	if err := json.Unmarshal(was, &doc); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(c.r.Body, &patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if _, ok := patch.(map[string]any); !ok {
		return nil, apierrors.NewBadRequest("Invalid JSON Patch")
	}
	return json.Marshal(mergePatch(doc, patch))
}

// strategicMerge applies a strategic merge patch. apimachinery panics at some
// patches that don't fit the kind. They are bad requests here.
func (c *call) strategicMerge(was []byte) (now []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the patch does not fit: %v", p)
		}
	}()
	return strategicpatch.StrategicMergePatch(was, c.r.Body, c.kind.zero(c.view))
}

// mergePatch applies a JSON merge patch (RFC 7386).
func mergePatch(doc, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	d, ok := doc.(map[string]any)
	if !ok {
		d = map[string]any{}
	}
	for k, v := range p {
		if v == nil {
			delete(d, k)
		} else {
			d[k] = mergePatch(d[k], v)
		}
	}
	return d
}
