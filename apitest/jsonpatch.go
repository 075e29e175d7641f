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
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	From  string          `json:"from"`
	Value json.RawMessage `json:"value"`
}

// jsonPatch applies a JSON patch. A patch that can't be read is a bad request,
// one that doesn't apply is an unprocessable one, as on the real server.
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

// edit adds, replaces or removes what path points to and returns the document.
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
