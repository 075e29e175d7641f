// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package patch_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright/apitest/internal/patch"
)

const doc = `{"a":{"b":1},"list":["x","y"]}`

func TestJSON(t *testing.T) {
	for _, tt := range []struct{ patch, want string }{
		{`[]`, doc},
		{`[{"op":"add","path":"/list/1","value":"z"}]`, `{"a":{"b":1},"list":["x","z","y"]}`},
		{`[{"op":"add","path":"/list/-","value":"z"}]`, `{"a":{"b":1},"list":["x","y","z"]}`},
		{`[{"op":"remove","path":"/list/-1"}]`, `{"a":{"b":1},"list":["x"]}`},
		{`[{"op":"replace","path":"/new","value":2}]`, `{"a":{"b":1},"list":["x","y"],"new":2}`},
		{`[{"op":"copy","from":"/a","path":"/c"},{"op":"replace","path":"/a/b","value":2}]`, `{"a":{"b":2},"c":{"b":1},"list":["x","y"]}`},
		{`[{"op":"move","from":"/a/b","path":"/a/c~1d"}]`, `{"a":{"c/d":1},"list":["x","y"]}`},
		{`[{"op":"test","path":"/none","value":null}]`, doc},
	} {
		got, err := patch.JSON([]byte(doc), []byte(tt.patch))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.patch, got, err, tt.want)
		}
	}
	for code, patches := range map[int32][]string{
		400: {`{}`, `x`},
		422: {`[{"op":"remove","path":"/none"}]`, `[{"op":"test","path":"/a/b","value":2}]`, `[{"op":"add","path":"/list/3","value":"z"}]`,
			`[{"op":"move","from":"/none","path":"/a"}]`, `[{"op":"jump","path":"/a"}]`},
	} {
		for _, p := range patches {
			_, err := patch.JSON([]byte(doc), []byte(p))
			if s, ok := err.(apierrors.APIStatus); !ok || s.Status().Code != code {
				t.Errorf("%s: %v, want %d", p, err, code)
			}
		}
	}
}

func TestMerge(t *testing.T) {
	got, err := patch.Merge([]byte(doc), []byte(`{"a":{"b":null,"c":{"d":1}},"list":["z"]}`))
	if want := `{"a":{"c":{"d":1}},"list":["z"]}`; err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if _, err := patch.Merge([]byte(doc), []byte(`[]`)); !apierrors.IsBadRequest(err) {
		t.Errorf("a list as patch: %v", err)
	}
}

func TestStrategic(t *testing.T) {
	was := `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"name":"a","image":"1"},{"name":"b","image":"1"}]}}`
	got, err := patch.Strategic([]byte(was), []byte(`{"kind":"Node","spec":{"containers":[{"name":"b","image":"2"}]}}`), &corev1.Pod{})
	want := `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"image":"1","name":"a"},{"image":"2","name":"b"}]}}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	for _, p := range []string{`x`, `{"spec":{"containers":[{"image":"2"}]}}`} {
		if _, err := patch.Strategic([]byte(was), []byte(p), &corev1.Pod{}); err == nil {
			t.Errorf("%s was applied", p)
		}
	}
}
