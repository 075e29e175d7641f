// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package patch

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	apijson "k8s.io/apimachinery/pkg/util/json"
)

// jsonOperation is one step of a JSON patch (RFC 6902).
type jsonOperation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	From  string          `json:"from"`
	Value json.RawMessage `json:"value"`
}

// maxOperations is the largest number of operations of a JSON patch.
const maxOperations = 10_000

// JSON applies a JSON patch. The error is 400 if the patch can't be decoded,
// and 422 if it does not apply, as on the real server, which takes more than RFC
// 6902 allows: a replace and a copy of fields that do not exist, a test of them
// for null, operations without a value, negative indices, and a path without its
// first slash.
func JSON(doc, patch []byte) ([]byte, error) {
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
