// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Node is the Node authorizer, and the admission plugin NodeRestriction.
type Node struct {
	Store *store.Store
	Minor int // the server's minor version
}

// nodeGeneral lists the requests that a node may send about any object.
var nodeGeneral = []rbacv1.PolicyRule{
	{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews", "selfsubjectreviews"}},
	{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews", "localsubjectaccessreviews"}},
	{Verbs: []string{"create", "get", "list", "watch"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"services"}},
	{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"endpoints"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csidrivers"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"node.k8s.io"}, Resources: []string{"runtimeclasses"}},
	{Verbs: []string{"create", "update", "patch"}, APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}},
}

// Allows reports whether the node may send r. The reason of a refusal is part of the
// message of the 403; from 1.37 on it names the authorizer.
func (s Node) Allows(r *request.Request) (bool, string) {
	ok, reason := s.decide(r)
	if reason != "" && s.Minor >= 37 {
		reason = "node: " + reason
	}
	return ok, reason
}

func (s Node) decide(r *request.Request) (bool, string) {
	node, ok := r.User.Node()
	if !ok {
		return false, ""
	}
	if r.Resource == "" {
		return true, "" // every user may use discovery
	}
	switch (schema.GroupResource{Group: r.Group, Resource: r.Resource}) {
	case schema.GroupResource{Resource: "nodes"}:
		return nodeOnNodes(node, r)
	case schema.GroupResource{Resource: "pods"}:
		return s.nodeOnPods(node, r)
	case schema.GroupResource{Resource: "secrets"}, schema.GroupResource{Resource: "configmaps"}:
		return s.nodeOnReferenced(node, r)
	case schema.GroupResource{Resource: "serviceaccounts"}:
		if r.Verb == "create" && r.Subresource == "token" && r.Name != "" {
			get := *r
			get.Verb, get.Subresource = "get", ""
			r = &get
		}
		if r.Verb != "get" || r.Subresource != "" {
			return false, "can only create tokens for individual service accounts"
		}
		return s.nodeOnReferenced(node, r)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return nodeOnLeases(node, r)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return s.nodeOnSlices(node, r)
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		return nodeOnCSINodes(node, r)
	case schema.GroupResource{Resource: "persistentvolumeclaims"}, schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		if r.Verb != "get" {
			return false, "can only get individual resources of this type"
		}
		return s.nodeOnReferenced(node, r)
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		if s.Minor >= 37 {
			return s.nodeOnCertificateRequests(node, r)
		}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:
		return s.Minor >= 37 && r.Subresource == "" && slices.Contains([]string{"get", "list", "watch"}, r.Verb), ""
	}
	return rulesAllow(nodeGeneral, r), ""
}

func nodeOnNodes(node string, r *request.Request) (bool, string) {
	switch r.Subresource + " " + r.Verb {
	case " create", " update", " patch", "status update", "status patch":
		return true, "" // NodeRestriction checks the name
	case " get", " list", " watch":
		switch r.Name {
		case node:
			return true, ""
		case "":
			return false, fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
		}
		return false, fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, r.Name)
	}
	return false, ""
}

func (s Node) nodeOnPods(node string, r *request.Request) (bool, string) {
	switch r.Subresource + " " + r.Verb {
	case " create", " delete", "status update", "status patch", "eviction create":
		return true, "" // NodeRestriction checks the pod
	case " get":
		return s.related(node, r.Name, func(p *corev1.Pod) bool { return p.Name == r.Name && p.Namespace == r.Namespace })
	case " list", " watch":
		if selects(r, "spec.nodeName", node) {
			return true, ""
		}
		if r.Name != "" {
			return s.related(node, r.Name, func(p *corev1.Pod) bool { return p.Name == r.Name && p.Namespace == r.Namespace })
		}
		return false, "can only list/watch pods with spec.nodeName field selector"
	}
	return false, ""
}

func nodeOnLeases(node string, r *request.Request) (bool, string) {
	switch r.Verb {
	case "get", "create", "update", "patch", "delete":
	default:
		return false, "can only get, create, update, patch, or delete a node lease"
	}
	if r.Namespace != corev1.NamespaceNodeLease {
		return false, fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if r.Verb != "create" && r.Name != node {
		return false, "can only access node lease with the same name as the requesting node"
	}
	return true, ""
}

func nodeOnCSINodes(node string, r *request.Request) (bool, string) {
	switch {
	case r.Subresource != "":
		return false, "cannot authorize CSINode subresources"
	case !slices.Contains([]string{"get", "create", "update", "patch", "delete"}, r.Verb):
		return false, "can only get, create, update, patch, or delete a CSINode"
	case r.Verb != "create" && r.Name != node: // NodeRestriction checks the name of a new one
		return false, "can only access CSINode with the same name as the requesting node"
	}
	return true, ""
}

func (s Node) nodeOnSlices(node string, r *request.Request) (bool, string) {
	switch r.Verb {
	case "create":
		return true, "" // NodeRestriction checks the slice
	case "get", "update", "patch", "delete":
		s.Store.Lock()
		defer s.Store.Unlock()
		if it := s.Store.Named["resourceslices"].Items[store.Key{Name: r.Name}]; it != nil && it.Node == node {
			return true, ""
		}
		return false, noRelationship(node)
	case "list", "watch", "deletecollection":
		if selects(r, resourcev1.ResourceSliceSelectorNodeName, node) {
			return true, ""
		}
		return false, "can only list/watch/deletecollection resourceslices with nodeName field selector"
	}
	return false, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
}

func (s Node) nodeOnCertificateRequests(node string, r *request.Request) (bool, string) {
	if r.Subresource != "" {
		return false, "nodes may not access the status subresource of PodCertificateRequests"
	}
	switch r.Verb {
	case "create":
		return true, "" // NodeRestriction checks the request
	case "get":
		s.Store.Lock()
		defer s.Store.Unlock()
		for k, t := range s.Store.Tables {
			if it := t.Items[store.Key{Namespace: r.Namespace, Name: r.Name}]; k.Resource == r.Resource && it != nil {
				if pcr, ok := it.Obj.(*certificatesv1.PodCertificateRequest); ok && string(pcr.Spec.NodeName) == node {
					return true, ""
				}
			}
		}
		return false, noRelationship(node)
	case "list", "watch":
		if selects(r, "spec.nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch podcertificaterequests with nodeName field selector"
	}
	return false, fmt.Sprintf("nodes may not %s podcertificaterequests", r.Verb)
}

// nodeOnReferenced decides about objects that pods of the node name.
func (s Node) nodeOnReferenced(node string, r *request.Request) (bool, string) {
	switch {
	case r.Verb != "get" && r.Verb != "list" && r.Verb != "watch":
		return false, "can only read resources of this type"
	case r.Subresource != "":
		return false, "cannot read subresource"
	case r.Namespace == "":
		return false, "can only read namespaced object of this type"
	}
	return s.related(node, r.Name, func(p *corev1.Pod) bool {
		return p.Namespace == r.Namespace && slices.Contains(references(p, r.Resource), r.Name)
	})
}

func noRelationship(node string) string {
	return fmt.Sprintf("no relationship found between node '%s' and this object", node)
}

// related reports whether a pod bound to the node satisfies f.
func (s Node) related(node, name string, f func(*corev1.Pod) bool) (bool, string) {
	if name == "" {
		return false, "No Object name found"
	}
	s.Store.Lock()
	defer s.Store.Unlock()
	for _, it := range s.Store.Named["pods"].Items {
		if it.Node == node && f(it.Obj.(*corev1.Pod)) {
			return true, ""
		}
	}
	return false, noRelationship(node)
}

// selects reports whether a request's field selector requires field=value.
func selects(r *request.Request, field, value string) bool {
	sel, err := fields.ParseSelector(r.FieldSelector)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(sel.Requirements(), func(req fields.Requirement) bool {
		return req.Field == field && req.Operator != selection.NotEquals && req.Value == value
	})
}

// references returns the names of the objects of a resource that a pod refers to.
func references(p *corev1.Pod, resource string) []string {
	names := map[string][]string{"serviceaccounts": {p.Spec.ServiceAccountName}}
	add := func(resource, name string) { names[resource] = append(names[resource], name) }
	for _, c := range p.Status.ResourceClaimStatuses {
		add("resourceclaims", ptr.Deref(c.ResourceClaimName, ""))
	}
	for _, c := range p.Spec.ResourceClaims {
		add("resourceclaims", ptr.Deref(c.ResourceClaimName, ""))
	}
	if c := p.Status.ExtendedResourceClaimStatus; c != nil {
		add("resourceclaims", c.ResourceClaimName)
	}
	for _, ref := range p.Spec.ImagePullSecrets {
		add("secrets", ref.Name)
	}
	rules.EachContainer(p, func(c *corev1.Container) {
		for _, e := range c.EnvFrom {
			add("configmaps", ptr.Deref(e.ConfigMapRef, corev1.ConfigMapEnvSource{}).Name)
			add("secrets", ptr.Deref(e.SecretRef, corev1.SecretEnvSource{}).Name)
		}
		for _, e := range c.Env {
			from := ptr.Deref(e.ValueFrom, corev1.EnvVarSource{})
			add("configmaps", ptr.Deref(from.ConfigMapKeyRef, corev1.ConfigMapKeySelector{}).Name)
			add("secrets", ptr.Deref(from.SecretKeyRef, corev1.SecretKeySelector{}).Name)
		}
	})
	for _, v := range p.Spec.Volumes {
		add("persistentvolumeclaims", ptr.Deref(v.PersistentVolumeClaim, corev1.PersistentVolumeClaimVolumeSource{}).ClaimName)
		if v.Ephemeral != nil {
			add("persistentvolumeclaims", p.Name+"-"+v.Name)
		}
		add("configmaps", ptr.Deref(v.ConfigMap, corev1.ConfigMapVolumeSource{}).Name)
		add("secrets", ptr.Deref(v.Secret, corev1.SecretVolumeSource{}).SecretName)
		for _, src := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			add("configmaps", ptr.Deref(src.ConfigMap, corev1.ConfigMapProjection{}).Name)
			add("secrets", ptr.Deref(src.Secret, corev1.SecretProjection{}).Name)
		}
	}
	return slices.DeleteFunc(names[resource], func(name string) bool { return name == "" })
}
