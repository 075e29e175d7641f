// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// NodeRules is the Node authorizer. It allows a node identity to read the objects
// that pods bound to the node refer to, and to write its Node, its lease, the
// status of its pods and its ResourceSlices. It refuses all other users.
//
// The NodeRestriction admission plugin is always on. It further restricts the
// writes of node identities that an Authorizer has allowed.
var NodeRules Authorizer = nodeRules{}

type nodeRules struct{}

// nodeGeneral lists the requests that a node may send about any object.
var nodeGeneral = []rbacv1.PolicyRule{
	{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews", "selfsubjectreviews"}},
	{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews", "localsubjectaccessreviews"}},
	{Verbs: []string{"create", "get", "list", "watch"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"services"}},
	{Verbs: []string{"create", "update", "patch"}, APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}},
}

// Authorize implements Authorizer.
func (nodeRules) Authorize(s *Server, r Request) (bool, string) {
	ok, reason := authorizeNode(s, r)
	if reason != "" && s.minor >= 37 { // the union of authorizers names them
		reason = "node: " + reason
	}
	return ok, reason
}

func authorizeNode(s *Server, r Request) (bool, string) {
	node, ok := r.User.nodeName()
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
		return nodeOnPods(s, node, r)
	case schema.GroupResource{Resource: "secrets"}, schema.GroupResource{Resource: "configmaps"}:
		return nodeOnReferenced(s, node, r)
	case schema.GroupResource{Resource: "serviceaccounts"}:
		if r.Verb == "create" && r.Subresource == "token" && r.Name != "" {
			r.Verb, r.Subresource = "get", ""
		}
		if r.Verb != "get" || r.Subresource != "" {
			return false, "can only create tokens for individual service accounts"
		}
		return nodeOnReferenced(s, node, r)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return nodeOnLeases(node, r)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return nodeOnSlices(s, node, r)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		if r.Verb != "get" {
			return false, "can only get individual resources of this type"
		}
		return nodeOnReferenced(s, node, r)
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		if s.minor >= 37 {
			return nodeOnCertificateRequests(s, node, r)
		}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:
		return s.minor >= 37 && r.Subresource == "" && slices.Contains([]string{"get", "list", "watch"}, r.Verb), ""
	}
	return rulesAllow(nodeGeneral, r), ""
}

func nodeOnNodes(node string, r Request) (bool, string) {
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

func nodeOnPods(s *Server, node string, r Request) (bool, string) {
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

func nodeOnLeases(node string, r Request) (bool, string) {
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

func nodeOnSlices(s *Server, node string, r Request) (bool, string) {
	switch r.Verb {
	case "create":
		return true, "" // NodeRestriction checks the slice
	case "get", "update", "patch", "delete":
		s.store.Lock()
		defer s.store.Unlock()
		if it := s.store.Named["resourceslices"].Items[store.Key{Name: r.Name}]; it != nil && it.Node == node {
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

func nodeOnCertificateRequests(s *Server, node string, r Request) (bool, string) {
	if r.Subresource != "" {
		return false, "nodes may not access the status subresource of PodCertificateRequests"
	}
	switch r.Verb {
	case "create":
		return true, "" // NodeRestriction checks the request
	case "get":
		s.store.Lock()
		defer s.store.Unlock()
		for k, t := range s.store.Tables {
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
func nodeOnReferenced(s *Server, node string, r Request) (bool, string) {
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
func (s *Server) related(node, name string, f func(*corev1.Pod) bool) (bool, string) {
	if name == "" {
		return false, "No Object name found"
	}
	s.store.Lock()
	defer s.store.Unlock()
	for _, it := range s.store.Named["pods"].Items {
		if it.Node == node && f(it.Obj.(*corev1.Pod)) {
			return true, ""
		}
	}
	return false, noRelationship(node)
}

// selects reports whether a request's field selector requires field=value.
func selects(r Request, field, value string) bool {
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
		add("configmaps", ptr.Deref(v.ConfigMap, corev1.ConfigMapVolumeSource{}).Name)
		add("secrets", ptr.Deref(v.Secret, corev1.SecretVolumeSource{}).SecretName)
		for _, src := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			add("configmaps", ptr.Deref(src.ConfigMap, corev1.ConfigMapProjection{}).Name)
			add("secrets", ptr.Deref(src.Secret, corev1.SecretProjection{}).Name)
		}
	}
	return slices.DeleteFunc(names[resource], func(name string) bool { return name == "" })
}

// nodeRestriction is the admission plugin NodeRestriction: it limits the writes of
// a node identity to its objects and their fields. obj is nil for a deletion, old
// for a creation. The store must be locked.
func (s *Server) nodeRestriction(c *call, obj, old runtime.Object) error {
	node, ok := c.r.User.nodeName()
	if !ok || c.kind.Dynamic {
		return nil
	}
	name := c.r.Name
	if obj != nil {
		name = codec.MetaOf(obj).GetName()
	}
	var err error
	switch c.kind.Resource {
	case "nodes":
		err = restrictNode(node, name, obj, old)
	case "pods":
		err = s.restrictPod(node, c.r.Subresource, obj, old)
	case "leases":
		err = restrictLease(node, obj, old)
	case "resourceslices":
		err = restrictSlice(node, obj, old)
	case "podcertificaterequests":
		if pcr, ok := obj.(*certificatesv1.PodCertificateRequest); ok && old == nil {
			err = s.restrictCertificateRequest(node, pcr)
		}
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(c.resource(), name, err)
}

func restrictNode(node, name string, obj, old runtime.Object) error {
	if name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	if obj == nil {
		return nil
	}
	n := obj.(*corev1.Node)
	if old == nil {
		if n.Spec.ConfigSource != nil {
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if bad := forbiddenLabels(n.Labels, nil); len(bad) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node, strings.Join(bad, ", "))
		}
		return nil
	}
	o := old.(*corev1.Node)
	switch {
	case n.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(n.Spec.ConfigSource, o.Spec.ConfigSource):
		return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
	case !equality.Semantic.DeepEqual(n.Spec.Taints, o.Spec.Taints):
		return fmt.Errorf("node %q is not allowed to modify taints", node)
	case !equality.Semantic.DeepEqual(n.OwnerReferences, o.OwnerReferences):
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	}
	if bad := forbiddenLabels(n.Labels, o.Labels); len(bad) > 0 {
		return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// kubeletLabels are the labels under kubernetes.io that a kubelet may set.
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// kubeletNamespaces are the label prefixes under which it may set all.
var kubeletNamespaces = []string{corev1.LabelNamespaceSuffixKubelet, corev1.LabelNamespaceSuffixNode}

// forbiddenLabels are the keys with different values in a and b that a kubelet
// may not change.
func forbiddenLabels(a, b map[string]string) (bad []string) {
	changed := map[string]bool{}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			changed[k] = true
		}
	}
	for k, v := range b {
		if w, ok := a[k]; !ok || v != w {
			changed[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(changed)) {
		ns, _, ok := strings.Cut(k, "/")
		if !ok {
			continue
		}
		under := func(domain string) bool { return ns == domain || strings.HasSuffix(ns, "."+domain) }
		if under(corev1.LabelNamespaceNodeRestriction) ||
			(under("kubernetes.io") || under("k8s.io")) && !slices.Contains(kubeletLabels, k) && !slices.ContainsFunc(kubeletNamespaces, under) {
			bad = append(bad, k)
		}
	}
	return bad
}

func (s *Server) restrictPod(node, subresource string, obj, old runtime.Object) error {
	var p, o *corev1.Pod
	if obj != nil {
		p = obj.(*corev1.Pod)
	}
	if old != nil {
		o = old.(*corev1.Pod)
	}
	switch subresource {
	case "":
		switch {
		case o == nil:
			return s.restrictMirrorPod(node, p)
		case p == nil:
			if o.Spec.NodeName != node {
				return fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node)
			}
			return nil
		}
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", "UPDATE", node)
	case "status":
		switch {
		case o.Spec.NodeName != node:
			return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
		case !maps.Equal(p.Labels, o.Labels):
			return fmt.Errorf("node %q cannot update labels through pod status", node)
		case !equality.Semantic.DeepEqual(p.Status.ResourceClaimStatuses, o.Status.ResourceClaimStatuses):
			return fmt.Errorf("node %q cannot update resource claim statues", node)
		case !equality.Semantic.DeepEqual(p.Status.ExtendedResourceClaimStatus, o.Status.ExtendedResourceClaimStatus):
			return fmt.Errorf("node %q cannot update extended resource claim status", node)
		}
		return nil
	case "eviction":
		if o.Spec.NodeName != node {
			return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node)
		}
		return nil
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", subresource)
}

func (s *Server) restrictMirrorPod(node string, p *corev1.Pod) error {
	if _, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; !ok {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if p.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if len(p.OwnerReferences) > 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	if len(p.OwnerReferences) == 0 {
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	}
	owner := p.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	it := s.store.Named["nodes"].Items[store.Key{Name: node}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, node)
	}
	if uid := codec.MetaOf(it.Obj).GetUID(); owner.UID != uid {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, owner.UID, uid)
	}
	for _, resource := range []string{"serviceaccounts", "secrets", "configmaps", "resourceclaims"} {
		if len(references(p, resource)) > 0 {
			return fmt.Errorf("node %q can not create pods that reference %s", node, resource)
		}
	}
	return nil
}

func restrictLease(node string, obj, old runtime.Object) error {
	l := obj
	if l == nil {
		l = old
	}
	if lease := l.(*coordinationv1.Lease); lease.Namespace != corev1.NamespaceNodeLease {
		return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	} else if lease.Name != node {
		return errors.New("can only access node lease with the same name as the requesting node")
	}
	return nil
}

// restrictCertificateRequest checks that the pod of a request runs on the node, with
// the service account of the request and with a volume that asks for this signer.
func (s *Server) restrictCertificateRequest(node string, r *certificatesv1.PodCertificateRequest) error {
	spec := &r.Spec
	if string(spec.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", spec.NodeName, node)
	}
	owner := s.store.Named["nodes"].Items[store.Key{Name: node}]
	if owner == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, node)
	}
	if uid := codec.MetaOf(owner.Obj).GetUID(); uid != spec.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", r.Namespace+"/"+spec.PodName, spec.NodeUID, uid)
	}
	it := s.store.Named["pods"].Items[store.Key{Namespace: r.Namespace, Name: spec.PodName}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, spec.PodName)
	}
	pod := it.Obj.(*corev1.Pod)
	switch {
	case pod.UID != spec.PodUID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", r.Namespace+"/"+spec.PodName, spec.PodUID, pod.UID)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", r.Namespace+"/"+spec.PodName, node)
	case pod.Spec.ServiceAccountName != spec.ServiceAccountName:
		return fmt.Errorf("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", r.Namespace+"/"+spec.PodName, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	for _, v := range pod.Spec.Volumes {
		for _, source := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			if source.PodCertificate != nil && source.PodCertificate.SignerName == spec.SignerName {
				return nil
			}
		}
	}
	return fmt.Errorf("pod %q has no volume with a certificate of signer %q", r.Namespace+"/"+spec.PodName, spec.SignerName)
}

func restrictSlice(node string, obj, old runtime.Object) error {
	mine := func(o runtime.Object) bool {
		n := o.(*resourcev1.ResourceSlice).Spec.NodeName
		return n != nil && *n == node
	}
	switch {
	case old == nil && !mine(obj):
		return errors.New("can only create ResourceSlice with the same NodeName as the requesting node")
	case obj == nil && !mine(old):
		return errors.New("can only delete ResourceSlice with the same NodeName as the requesting node")
	}
	return nil
}
