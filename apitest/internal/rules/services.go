// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
)

var serviceAccounts = &Kind{
	Name: "ServiceAccount", Resource: "serviceaccounts", Views: []View{{GV: corev1.SchemeGroupVersion}},
	Namespaced: true, validName: apivalidation.ValidateServiceAccountName, Unconditional: true, ReturnsDeleted: true,
	subresources: []Subresource{{Name: "token", GVK: authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")}},
}

var services = &Kind{
	Name: "Service", Resource: "services", Views: []View{{GV: corev1.SchemeGroupVersion}},
	Namespaced: true, Status: true, validName: apivalidation.NameIsDNS1035Label, Unconditional: true, CreateOnUpdate: true, ReturnsDeleted: true,
	Fields: func(obj runtime.Object, path string) (string, bool) {
		switch s := obj.(*corev1.Service); path {
		case "spec.clusterIP":
			return s.Spec.ClusterIP, true
		case "spec.type":
			return string(s.Spec.Type), true
		}
		return "", false
	},
	Defaults: func(obj runtime.Object) {
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
	OnCreate: func(_ *Write, obj runtime.Object) { obj.(*corev1.Service).Status = corev1.ServiceStatus{} },
	OnUpdate: func(w *Write, obj, old runtime.Object) {
		s, o := obj.(*corev1.Service), old.(*corev1.Service)
		if w.Subresource == "status" {
			s.Spec = o.Spec
		} else {
			s.Status = o.Status
		}
	},
}
