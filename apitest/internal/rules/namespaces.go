// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var namespaces = &Kind{
	Name: "Namespace", Resource: "namespaces", Views: []View{{GV: corev1.SchemeGroupVersion}},
	Status: true, subresources: []Subresource{{Name: "finalize", updateOnly: true}},
	validName: apivalidation.ValidateNamespaceName, Unconditional: true, ReturnsDeleted: true, NoCollection: true,
	Fields: func(obj runtime.Object, path string) (string, bool) {
		switch ns := obj.(*corev1.Namespace); path {
		case "status.phase":
			return string(ns.Status.Phase), true
		case "name":
			return ns.Name, true
		}
		return "", false
	},
	Defaults: func(obj runtime.Object) {
		ns := obj.(*corev1.Namespace)
		if ns.Labels[corev1.LabelMetadataName] != ns.Name {
			ns.Labels = maps.Clone(ns.Labels)
			if ns.Labels == nil {
				ns.Labels = map[string]string{}
			}
			ns.Labels[corev1.LabelMetadataName] = ns.Name
		}
		if ns.Status.Phase == "" {
			ns.Status.Phase = corev1.NamespaceActive
		}
	},
	OnCreate: func(_ *Write, obj runtime.Object) {
		ns := obj.(*corev1.Namespace)
		ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		ns.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	},
	OnUpdate: func(w *Write, obj, old runtime.Object) {
		ns, o := obj.(*corev1.Namespace), old.(*corev1.Namespace)
		if w.Subresource != "finalize" {
			ns.Spec.Finalizers = o.Spec.Finalizers
		}
		if w.Subresource != "status" {
			ns.Status = o.Status
		}
	},
	// A namespace that is deleted stays Terminating until it is empty: see
	// Server.empty.
	OnDelete: func(obj runtime.Object) (keep, changed bool) {
		ns := obj.(*corev1.Namespace)
		if len(ns.Spec.Finalizers) == 0 || ns.DeletionTimestamp != nil {
			return len(ns.Spec.Finalizers) > 0, false
		}
		now := metav1.Now().Rfc3339Copy()
		ns.DeletionTimestamp = &now
		ns.Status.Phase = corev1.NamespaceTerminating
		return true, true
	},
}
