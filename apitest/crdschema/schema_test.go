// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package crdschema_test

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/crdschema"
)

var gizmoResource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gizmos"}

// definition returns the definition of gizmos with old replaced by new.
func definition(t *testing.T, old, new string) *unstructured.Unstructured {
	t.Helper()
	if !strings.Contains(gizmos, old) {
		t.Fatalf("there is no %q", old)
	}
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.Replace(gizmos, old, new, 1)), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func gizmo(name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "namespace": "default"}, "spec": spec}}
	u.SetGroupVersionKind(gizmoResource.GroupVersion().WithKind("Gizmo"))
	return u
}

func TestCompileRefuses(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"a schema that is not structural", "{type: integer, minimum: 1}", "{minimum: 1}", "properties[size].type: Required value"},
		{"a default of a wrong type", "default: grey", "default: 7", "properties[color].default: Invalid value"},
		{"a rule that does not compile", "required: [size]", `x-kubernetes-validations: [{rule: "self.depth > 1"}]`, "undefined field 'depth'"},
		{"a definition without a schema", "    schema:\n      openAPIV3Schema:", "    other:\n      openAPIV3Schema:", "openAPIV3Schema: Required value"},
		{"a schema that does not decode", "minimum: 1", "minimum: x", "spec: Invalid value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := definition(t, tt.old, tt.new)
			before := d.DeepCopy()
			schemas, errs := crdschema.Compile(d)
			if errs == nil || !strings.Contains(errs.ToAggregate().Error(), tt.want) {
				t.Errorf("errors %v, want one with %q", errs, tt.want)
			}
			if schemas != nil {
				t.Errorf("schemas %v of a refused definition", schemas)
			}
			if !reflect.DeepEqual(d, before) {
				t.Errorf("Compile changed the definition: %v", d)
			}
		})
	}
}

// Server.Put validates nothing: not the object, and not its definition.
func TestPut(t *testing.T) {
	s := apitest.New(apitest.Options{Schemas: crdschema.Compile})
	client := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).Resource(gizmoResource).Namespace("default")
	s.Put(definition(t, "minimum: 1}", `minimum: 1, x-kubernetes-validations: [{rule: "self != 0"}]}`))
	put := s.Put(gizmo("g", map[string]any{"size": int64(0)})).(*unstructured.Unstructured)
	if want := map[string]any{"size": int64(0), "color": "grey"}; !reflect.DeepEqual(put.Object["spec"], want) {
		t.Errorf("Put stored %v, want %v", put.Object["spec"], want)
	}
	// An update may keep the invalid value, but not change it to another.
	put.SetLabels(map[string]string{"l": "v"})
	put, err := client.Update(t.Context(), put, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	put.Object["spec"] = map[string]any{"size": int64(-1)}
	if _, err := client.Update(t.Context(), put, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("update with another invalid value: %v", err)
	}

	s.Put(definition(t, "{type: integer, minimum: 1}", "{minimum: 1}"))
	if _, err := client.Create(t.Context(), gizmo("h", nil), metav1.CreateOptions{}); err != nil {
		t.Errorf("create of an object whose definition is invalid: %v", err)
	}
}

func TestConcurrentWrites(t *testing.T) {
	s := apitest.New(apitest.Options{Schemas: crdschema.Compile})
	s.Put(definition(t, "required: [size]", `x-kubernetes-validations: [{rule: "self.size < 5"}]`))
	client := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).Resource(gizmoResource).Namespace("default")
	var wg sync.WaitGroup
	for size := range int64(10) {
		wg.Go(func() {
			_, err := client.Create(t.Context(), gizmo(fmt.Sprint("g", size), map[string]any{"size": size}), metav1.CreateOptions{})
			if valid := size > 0 && size < 5; valid != (err == nil) || err != nil && !apierrors.IsInvalid(err) {
				t.Errorf("size %d: %v", size, err)
			}
		})
	}
	wg.Wait()
}
