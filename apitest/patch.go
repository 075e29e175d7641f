// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

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

// patched returns old with the patch applied, in the stored version.
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

// strategicMerge applies a strategic merge patch. apimachinery panics on some
// patches that don't fit the kind; they are bad requests here.
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

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	From  string          `json:"from"`
	Value json.RawMessage `json:"value"`
}

// jsonPatch applies a JSON patch. The error is 400 if the patch can't be decoded,
// and 422 if it does not apply, as on the real server.
func jsonPatch(doc, patch []byte) ([]byte, error) {
	var ops []operation
	if err := json.Unmarshal(patch, &ops); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var root any
	if err := json.Unmarshal(doc, &root); err != nil {
		return nil, err
	}
	for _, op := range ops {
		var err error
		if root, err = op.apply(root); err != nil {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
	}
	return json.Marshal(root)
}

func (op operation) apply(root any) (any, error) {
	path, err := pointer(op.Path)
	if err != nil {
		return nil, err
	}
	var value any
	switch op.Op {
	case "add", "replace", "test":
		if op.Value == nil {
			return nil, fmt.Errorf("%s operation without a value: %q", op.Op, op.Path)
		}
		if err := json.Unmarshal(op.Value, &value); err != nil {
			return nil, err
		}
	case "copy", "move":
		from, err := pointer(op.From)
		if err != nil {
			return nil, err
		}
		if value, err = find(root, from); err != nil {
			return nil, err
		}
		if op.Op == "move" {
			if root, err = edit(root, from, "remove", nil); err != nil {
				return nil, err
			}
		} else {
			value = clone(value)
		}
	case "remove":
	default:
		return nil, fmt.Errorf("unexpected operation %q", op.Op)
	}
	switch op.Op {
	case "test":
		have, err := find(root, path)
		if err != nil {
			return nil, err
		}
		if !reflect.DeepEqual(have, value) {
			return nil, fmt.Errorf("testing path %q failed", op.Path)
		}
		return root, nil
	case "copy", "move":
		return edit(root, path, "add", value)
	}
	return edit(root, path, op.Op, value)
}

// pointer splits a JSON pointer (RFC 6901).
func pointer(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	if s[0] != '/' {
		return nil, fmt.Errorf("path %q does not start with a slash", s)
	}
	parts := strings.Split(s[1:], "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return parts, nil
}

var errNoElement = errors.New("path does not exist")

func find(doc any, path []string) (any, error) {
	for _, p := range path {
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[p]
			if !ok {
				return nil, errNoElement
			}
			doc = v
		case []any:
			i, err := strconv.Atoi(p)
			if err != nil || i < 0 || i >= len(d) {
				return nil, errNoElement
			}
			doc = d[i]
		default:
			return nil, errNoElement
		}
	}
	return doc, nil
}

// edit adds, replaces or removes the value at path and returns the document.
func edit(doc any, path []string, op string, value any) (any, error) {
	if len(path) == 0 {
		if op == "remove" {
			return nil, nil
		}
		return value, nil
	}
	p := path[0]
	switch d := doc.(type) {
	case map[string]any:
		old, ok := d[p]
		if !ok && (op != "add" || len(path) > 1) {
			return nil, errNoElement
		}
		if len(path) == 1 {
			if op == "remove" {
				delete(d, p)
			} else {
				d[p] = value
			}
			return d, nil
		}
		v, err := edit(old, path[1:], op, value)
		if err != nil {
			return nil, err
		}
		d[p] = v
		return d, nil
	case []any:
		if p == "-" && len(path) == 1 && op == "add" {
			return append(d, value), nil
		}
		i, err := strconv.Atoi(p)
		if err != nil || i < 0 || i > len(d) || i == len(d) && (op != "add" || len(path) > 1) {
			return nil, errNoElement
		}
		if len(path) > 1 {
			v, err := edit(d[i], path[1:], op, value)
			if err != nil {
				return nil, err
			}
			d[i] = v
			return d, nil
		}
		switch op {
		case "add":
			return slices.Insert(d, i, value), nil
		case "remove":
			return slices.Delete(d, i, i+1), nil
		}
		d[i] = value
		return d, nil
	}
	return nil, errNoElement
}

func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[k] = clone(e)
		}
		return m
	case []any:
		s := make([]any, len(v))
		for i, e := range v {
			s[i] = clone(e)
		}
		return s
	}
	return v
}
