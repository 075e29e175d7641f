// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package patch applies the three kinds of patches to documents in JSON, with the errors of
// the API server.
package patch

import (
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Merge applies a JSON merge patch to a document.
func Merge(was, patch []byte) ([]byte, error) {
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

// Strategic applies a strategic merge patch. The patch can't change kind and
// apiVersion. apimachinery panics on some patches that don't fit the kind.
func Strategic(was, patch []byte, zero runtime.Object) (now []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the patch does not fit: %v", p)
		}
	}()
	var doc, sent, merged map[string]any
	if err := json.Unmarshal(patch, &sent); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := json.Unmarshal(was, &doc); err != nil {
		return nil, err
	}
	now, err = strategicpatch.StrategicMergePatch(was, patch, zero)
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
