// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The kinds of the core group that nobody here writes much of.

var namespaces = &kind{
	name: "Namespace", resource: "namespaces", views: []view{{gv: corev1.SchemeGroupVersion}},
	status: true, subresources: []subresource{{name: "finalize", updateOnly: true}},
	validName: apivalidation.ValidateNamespaceName, unconditional: true, returnsDeleted: true, noCollection: true,
	fields: func(obj runtime.Object, path string) (string, bool) {
		switch ns := obj.(*corev1.Namespace); path {
		case "status.phase":
			return string(ns.Status.Phase), true
		case "name":
			return ns.Name, true
		}
		return "", false
	},
	defaults: func(obj runtime.Object) {
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
	onCreate: func(_ *write, obj runtime.Object) {
		ns := obj.(*corev1.Namespace)
		ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		ns.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	},
	onUpdate: func(w *write, obj, old runtime.Object) {
		ns, o := obj.(*corev1.Namespace), old.(*corev1.Namespace)
		if w.r.Subresource != "finalize" {
			ns.Spec.Finalizers = o.Spec.Finalizers
		}
		if w.r.Subresource != "status" {
			ns.Status = o.Status
		}
	},
	// A namespace that is deleted stays Terminating until it is empty: see
	// Server.empty.
	onDelete: func(obj runtime.Object) (keep, changed bool) {
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

var configMaps = &kind{
	name: "ConfigMap", resource: "configmaps", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, validName: apivalidation.NameIsDNSSubdomain, unconditional: true,
	validate: func(_ *write, obj, old runtime.Object) (errs field.ErrorList) {
		cm := obj.(*corev1.ConfigMap)
		size := 0
		for k, v := range cm.Data {
			errs = append(errs, validateDataKey(k, field.NewPath("data").Key(k))...)
			if _, twice := cm.BinaryData[k]; twice {
				errs = append(errs, field.Invalid(field.NewPath("data").Key(k), k, "duplicate of key present in binaryData"))
			}
			size += len(v)
		}
		for k, v := range cm.BinaryData {
			errs = append(errs, validateDataKey(k, field.NewPath("binaryData").Key(k))...)
			size += len(v)
		}
		if size > corev1.MaxSecretSize {
			errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
		}
		if old == nil {
			return errs
		}
		if o := old.(*corev1.ConfigMap); o.Immutable != nil && *o.Immutable {
			if cm.Immutable == nil || !*cm.Immutable {
				errs = append(errs, field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set"))
			}
			if !equality.Semantic.DeepEqual(cm.Data, o.Data) {
				errs = append(errs, field.Forbidden(field.NewPath("data"), "field is immutable when `immutable` is set"))
			}
			if !equality.Semantic.DeepEqual(cm.BinaryData, o.BinaryData) {
				errs = append(errs, field.Forbidden(field.NewPath("binaryData"), "field is immutable when `immutable` is set"))
			}
		}
		return errs
	},
}

var secrets = &kind{
	name: "Secret", resource: "secrets", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, validName: apivalidation.NameIsDNSSubdomain, unconditional: true,
	fields: func(obj runtime.Object, path string) (string, bool) {
		return string(obj.(*corev1.Secret).Type), path == "type"
	},
	defaults: func(obj runtime.Object) {
		s := obj.(*corev1.Secret)
		if s.Type == "" {
			s.Type = corev1.SecretTypeOpaque
		}
		if len(s.StringData) > 0 {
			s.Data = maps.Clone(s.Data)
			if s.Data == nil {
				s.Data = map[string][]byte{}
			}
			for k, v := range s.StringData {
				s.Data[k] = []byte(v)
			}
			s.StringData = nil
		}
	},
	validate: func(_ *write, obj, old runtime.Object) (errs field.ErrorList) {
		s := obj.(*corev1.Secret)
		for k := range s.Data {
			errs = append(errs, validateDataKey(k, field.NewPath("data").Key(k))...)
		}
		if old != nil {
			errs = append(errs, apivalidation.ValidateImmutableField(s.Type, old.(*corev1.Secret).Type, field.NewPath("type"))...)
		}
		return errs
	},
}

func validateDataKey(k string, path *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsConfigMapKey(k) {
		errs = append(errs, field.Invalid(path, k, msg))
	}
	return errs
}

var serviceAccounts = &kind{
	name: "ServiceAccount", resource: "serviceaccounts", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, validName: apivalidation.ValidateServiceAccountName, unconditional: true, returnsDeleted: true,
}

var services = &kind{
	name: "Service", resource: "services", views: []view{{gv: corev1.SchemeGroupVersion}},
	namespaced: true, status: true, validName: apivalidation.NameIsDNS1035Label, unconditional: true, createOnUpdate: true, returnsDeleted: true,
	fields: func(obj runtime.Object, path string) (string, bool) {
		switch s := obj.(*corev1.Service); path {
		case "spec.clusterIP":
			return s.Spec.ClusterIP, true
		case "spec.type":
			return string(s.Spec.Type), true
		}
		return "", false
	},
	defaults: func(obj runtime.Object) {
		s := obj.(*corev1.Service)
		if s.Spec.Type == "" {
			s.Spec.Type = corev1.ServiceTypeClusterIP
		}
		if s.Spec.SessionAffinity == "" {
			s.Spec.SessionAffinity = corev1.ServiceAffinityNone
		}
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; p.Protocol == "" {
				p.Protocol = corev1.ProtocolTCP
			}
			if p := &s.Spec.Ports[i]; p.TargetPort.IntVal == 0 && p.TargetPort.StrVal == "" {
				p.TargetPort.IntVal = p.Port
			}
		}
	},
	onCreate: func(_ *write, obj runtime.Object) { obj.(*corev1.Service).Status = corev1.ServiceStatus{} },
	onUpdate: func(w *write, obj, old runtime.Object) {
		s, o := obj.(*corev1.Service), old.(*corev1.Service)
		if w.r.Subresource == "status" {
			s.Spec = o.Spec
		} else {
			s.Status = o.Status
		}
	},
}
