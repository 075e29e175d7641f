// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubewright/kubewright/apitest"
)

// A custom resource has a generation and the status subresource.
func ExampleServer_Register() {
	ctx := context.Background()
	s := apitest.New(apitest.Options{})
	gizmo := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gizmo"}
	s.Register(apitest.Kind{GroupVersionKind: gizmo})

	gizmos := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).Resource(gizmo.GroupVersion().WithResource("gizmos")).Namespace("default")
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "g"}, "spec": map[string]any{"size": int64(1)}}}
	obj.SetGroupVersionKind(gizmo)
	obj, err := gizmos.Create(ctx, obj, metav1.CreateOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	obj.Object["status"] = map[string]any{"ready": true}
	if obj, err = gizmos.UpdateStatus(ctx, obj, metav1.UpdateOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(obj.GetGeneration(), obj.Object["status"])
	obj.Object["spec"] = map[string]any{"size": int64(2)}
	if obj, err = gizmos.Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(obj.GetGeneration(), obj.Object["status"])
	// Output:
	// 1 map[ready:true]
	// 2 map[ready:true]
}
