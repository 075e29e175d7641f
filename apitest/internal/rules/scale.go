// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest/internal/codec"
)

// scaleSubresource is /scale: a view of the object that has its number of replicas.
var scaleSubresource = Subresource{Name: "scale", GVK: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), Scale: true}

// pathsOf reads subresources.scale of a version of a CustomResourceDefinition.
func pathsOf(version map[string]any) (p scalePaths, ok bool) {
	scale, ok, _ := unstructured.NestedMap(version, "subresources", "scale")
	path := func(name string) []string {
		text, _, _ := unstructured.NestedString(scale, name)
		if text = strings.TrimPrefix(text, "."); text == "" {
			return nil
		}
		return strings.Split(text, ".")
	}
	return scalePaths{path("specReplicasPath"), path("statusReplicasPath"), path("labelSelectorPath")}, ok
}

// ScaleOf returns the Scale of an object of a kind that has the subresource. It returns
// an error if the object has no number of replicas.
func (k *Kind) ScaleOf(obj runtime.Object) (*autoscalingv1.Scale, error) {
	m := codec.MetaOf(obj)
	s := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{
		Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(), CreationTimestamp: m.GetCreationTimestamp()}}
	s.SetGroupVersionKind(scaleSubresource.GVK)
	if k.Dynamic {
		content := contentOf(obj)
		n, ok, err := unstructured.NestedInt64(content, k.scale.replicas...)
		if err != nil || !ok {
			return nil, fmt.Errorf("the spec replicas field %q does not exist", "."+strings.Join(k.scale.replicas, "."))
		}
		s.Spec.Replicas = int32(n)
		if n, ok, _ := unstructured.NestedInt64(content, k.scale.current...); ok {
			s.Status.Replicas = int32(n)
		}
		if len(k.scale.selector) > 0 {
			s.Status.Selector, _, _ = unstructured.NestedString(content, k.scale.selector...)
		}
		return s, nil
	}
	spec := part(obj, "Spec")
	if n := spec.FieldByName("Replicas").Interface().(*int32); n != nil {
		s.Spec.Replicas = *n
	}
	s.Status.Replicas = int32(part(obj, "Status").FieldByName("Replicas").Int())
	switch selector := spec.FieldByName("Selector").Interface().(type) {
	case *metav1.LabelSelector:
		if sel, err := metav1.LabelSelectorAsSelector(selector); err == nil {
			s.Status.Selector = sel.String()
		}
	case map[string]string:
		s.Status.Selector = labels.SelectorFromSet(selector).String()
	}
	return s, nil
}

// SetReplicas changes the number of replicas in the spec of an object.
func (k *Kind) SetReplicas(obj runtime.Object, n int32) error {
	if k.Dynamic {
		return unstructured.SetNestedField(contentOf(obj), int64(n), k.scale.replicas...)
	}
	*part(obj, "Spec").FieldByName("Replicas").Addr().Interface().(**int32) = &n
	return nil
}
