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
	apijson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

func (c *call) patch() (*answer, error) {
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

func (c *call) applyPatch() (*store.Item, error) {
	c.s.store.Begin()
	defer c.s.store.Commit()
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
func (c *call) patched(old *store.Item) (runtime.Object, error) {
	gvk := c.kind.Views[c.view].GV.WithKind(c.kind.Name)
	was := codec.JSON.Bytes(c.kind.ConvertTo(old.Obj, c.view))
	now, err := c.patchJSON(was)
	if err != nil {
		return nil, err
	}
	dec := c.kind.Decoder(codec.JSON, c.query.Get("fieldValidation") != metav1.FieldValidationIgnore)
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

func (c *call) patchJSON(was []byte) ([]byte, error) {
	switch c.r.PatchType {
	case types.StrategicMergePatchType:
		return c.strategicMerge(was)
	case types.JSONPatchType:
		return jsonPatch(was, c.r.Body)
	}
	return mergeJSON(was, c.r.Body)
}

// mergeJSON applies a JSON merge patch to a document.
func mergeJSON(was, patch []byte) ([]byte, error) {
	var doc, p any
	if err := json.Unmarshal(was, &doc); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if _, ok := p.(map[string]any); !ok {
		return nil, apierrors.NewBadRequest("Invalid JSON Patch")
	}
	return json.Marshal(mergePatch(doc, p))
}

// strategicMerge applies a strategic merge patch. The patch can't change kind and
// apiVersion. apimachinery panics on some patches that don't fit the kind.
func (c *call) strategicMerge(was []byte) (now []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the patch does not fit: %v", p)
		}
	}()
	var doc, patch, merged map[string]any
	if err := json.Unmarshal(c.r.Body, &patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := json.Unmarshal(was, &doc); err != nil {
		return nil, err
	}
	now, err = strategicpatch.StrategicMergePatch(was, c.r.Body, c.kind.Zero(c.view))
	switch err {
	case nil:
	case mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat:
		return nil, apierrors.NewBadRequest(err.Error())
	default:
		return nil, err // 500 on the real server too
	}
	if err := json.Unmarshal(now, &merged); err != nil {
		return nil, err
	}
	for _, name := range []string{"kind", "apiVersion"} {
		if merged[name] == doc[name] {
			continue
		}
		merged["kind"], merged["apiVersion"] = doc["kind"], doc["apiVersion"]
		return json.Marshal(merged)
	}
	return now, nil
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

// jsonOperation is one step of a JSON patch (RFC 6902).
type jsonOperation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	From  string          `json:"from"`
	Value json.RawMessage `json:"value"`
}

// maxOperations is the largest number of operations of a JSON patch.
const maxOperations = 10_000

// jsonPatch applies a JSON patch. The error is 400 if the patch can't be decoded,
// and 422 if it does not apply, as on the real server, which takes more than RFC
// 6902 allows: a replace and a copy of fields that do not exist, a test of them
// for null, operations without a value, negative indices, and a path without its
// first slash.
func jsonPatch(doc, patch []byte) ([]byte, error) {
	var ops []jsonOperation
	if err := apijson.Unmarshal(patch, &ops); err != nil { // the names of fields are case-sensitive
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if len(ops) > maxOperations {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(ops)))
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

func (op jsonOperation) apply(root any) (any, error) {
	path, err := pointer(op.Path)
	if err != nil {
		return nil, err
	}
	var value any
	switch op.Op {
	case "add", "replace", "test":
		if op.Value != nil {
			if err := json.Unmarshal(op.Value, &value); err != nil {
				return nil, err
			}
		}
	case "copy", "move":
		from, err := pointer(op.From)
		if err != nil {
			return nil, err
		}
		if value, err = find(root, from); err != nil && (op.Op == "move" || !errors.Is(err, errNoField)) {
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
		if err != nil && (value != nil || !errors.Is(err, errNoField)) {
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
	parts := strings.Split(s, "/")[1:]
	if len(parts) == 0 {
		return nil, errNoElement
	}
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return parts, nil
}

var (
	errNoElement = errors.New("path does not exist")
	// errNoField is the error for the last field of a path.
	errNoField = fmt.Errorf("%w: no such field", errNoElement)
)

// index reads the index of an element of a list with n elements. A negative index
// counts from the end.
func index(s string, n int) (int, error) {
	i, err := strconv.Atoi(s)
	if i < 0 {
		i += n
	}
	if err != nil || i < 0 || i >= n {
		return 0, errNoElement
	}
	return i, nil
}

func find(doc any, path []string) (any, error) {
	for at, p := range path {
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[p]
			if !ok && at == len(path)-1 {
				return nil, errNoField
			}
			if !ok {
				return nil, errNoElement
			}
			doc = v
		case []any:
			i, err := index(p, len(d))
			if err != nil {
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
		if op == "replace" {
			return value, nil
		}
		return nil, errNoElement
	}
	p := path[0]
	switch d := doc.(type) {
	case map[string]any:
		old, ok := d[p]
		if !ok && (op == "remove" || len(path) > 1) {
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
		n := len(d)
		if op == "add" && len(path) == 1 {
			n++ // an element can be added at the end
		}
		i, err := index(p, n)
		if err != nil {
			return nil, err
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
