// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package crdschema_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/crdschema"
)

const gizmos = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gizmos.example.com
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gizmos, kind: Gizmo}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1}
              color: {type: string, default: grey}
`

// A custom resource gets the defaults of its schema, and must be valid.
func Example() {
	ctx := context.Background()
	s := apitest.New(apitest.Options{Schemas: crdschema.Compile})
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(gizmos), &definition.Object); err != nil {
		fmt.Println(err)
		return
	}
	s.Put(definition)

	client := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).
		Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gizmos"}).Namespace("default")
	for size, name := range []string{"empty", "small"} {
		gizmo := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"size": int64(size)},
		}}
		gizmo, err := client.Create(ctx, gizmo, metav1.CreateOptions{})
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(gizmo.Object["spec"])
	}
	// Output:
	// Gizmo.example.com "empty" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1
	// map[color:grey size:1]
}
