// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"net/netip"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
	Defaults: func(obj runtime.Object) { defaultService(&obj.(*corev1.Service).Spec) },
	OnCreate: func(w *Write, obj runtime.Object) {
		s := obj.(*corev1.Service)
		s.Status = corev1.ServiceStatus{}
		allocate(w, s)
	},
	OnUpdate: func(w *Write, obj, old runtime.Object) {
		s, o := obj.(*corev1.Service), old.(*corev1.Service)
		if w.Subresource == "status" {
			s.Spec = o.Spec
			return
		}
		s.Status = o.Status
		keepAllocated(&s.Spec, &o.Spec)
		allocate(w, s)
	},
	validate: func(w *Write, obj, old runtime.Object) (errs field.ErrorList) {
		if old == nil || w.Subresource != "" {
			return nil
		}
		s, o := &obj.(*corev1.Service).Spec, &old.(*corev1.Service).Spec
		if hasAddress(s) && hasAddress(o) && s.ClusterIP != o.ClusterIP {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(0), s.ClusterIPs, "may not change once set"))
		}
		return errs
	},
}

// hasAddress reports whether a Service is reached by an address, which may be "None".
func hasAddress(s *corev1.ServiceSpec) bool { return s.Type != corev1.ServiceTypeExternalName }

// hasNodePorts reports whether a Service has ports on the nodes.
func hasNodePorts(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeNodePort || s.Type == corev1.ServiceTypeLoadBalancer
}

func defaultService(s *corev1.ServiceSpec) {
	orText(&s.Type, corev1.ServiceTypeClusterIP)
	orText(&s.SessionAffinity, corev1.ServiceAffinityNone)
	if hasAddress(s) {
		or(&s.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if hasNodePorts(s) {
		orText(&s.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if s.Type == corev1.ServiceTypeLoadBalancer {
		or(&s.AllocateLoadBalancerNodePorts, true)
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p := &s.Ports[i]; p.TargetPort.IntVal == 0 && p.TargetPort.StrVal == "" {
			p.TargetPort.IntVal = p.Port
		}
	}
}

// keepAllocated keeps what the server has allocated if an update does not name it.
func keepAllocated(s, old *corev1.ServiceSpec) {
	if hasAddress(s) && hasAddress(old) && s.ClusterIP == "" {
		s.ClusterIP, s.ClusterIPs = old.ClusterIP, old.ClusterIPs
		s.IPFamilies, s.IPFamilyPolicy = old.IPFamilies, old.IPFamilyPolicy
	}
	if !hasNodePorts(s) {
		return
	}
	for i := range s.Ports {
		for _, p := range old.Ports {
			if s.Ports[i].NodePort == 0 && p.Port == s.Ports[i].Port && p.Protocol == s.Ports[i].Protocol {
				s.Ports[i].NodePort = p.NodePort
			}
		}
	}
}

// allocate gives a Service its address of the cluster and its ports on the nodes, the lowest ones
// that are free. The real server draws them.
func allocate(w *Write, s *corev1.Service) {
	if !hasAddress(&s.Spec) {
		return
	}
	addresses, ports := map[string]bool{}, map[int32]bool{}
	for _, obj := range w.Objects(schema.GroupKind{Kind: "Service"}) {
		other := obj.(*corev1.Service)
		addresses[other.Spec.ClusterIP] = true
		for _, p := range other.Spec.Ports {
			ports[p.NodePort] = true
		}
	}
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	for at := netip.MustParseAddr("10.96.0.10"); s.Spec.ClusterIP == ""; at = at.Next() {
		if !addresses[at.String()] {
			s.Spec.ClusterIP = at.String()
		}
	}
	if len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		if ip, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && ip.Is6() {
			s.Spec.IPFamilies[0] = corev1.IPv6Protocol
		}
	}
	or(&s.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	if !hasNodePorts(&s.Spec) || s.Spec.AllocateLoadBalancerNodePorts != nil && !*s.Spec.AllocateLoadBalancerNodePorts {
		return
	}
	next := int32(30000)
	for i := range s.Spec.Ports {
		for s.Spec.Ports[i].NodePort == 0 {
			if !ports[next] {
				s.Spec.Ports[i].NodePort = next
			}
			next++
		}
	}
}
